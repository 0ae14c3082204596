import { readdir } from 'node:fs/promises'
import { join, parse } from 'node:path'
import type { Client, QueryConfig } from 'pg'
import { ApiError, errors } from '../errors.ts'
import { createClient } from './client.ts'

const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'
const lockTimeoutMs = 30_000
// Also bounds what a server that has fallen silent is waited for.
const migrationTimeoutMs = 600_000
const lookTimeoutMs = 5000

/**
 * Brings the schema up to date, or takes back the newest migration. All or
 * nothing, and one at a time however many instances start together: the others
 * wait, and find it done. Returns the names of the migrations it ran.
 */
export async function migrate (url: string, direction: 'up' | 'down'): Promise<string[]> {
  // Bounds the wait for another instance's migrations, which the library does not.
  const client = createClient({ connectionString: url, lock_timeout: lockTimeoutMs, query_timeout: migrationTimeoutMs })
  try {
    await client.connect().catch((cause) => { throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause }) })
    if (direction === 'up' && await isUpToDate(client)) return []
    // Loaded when there is something to do: it takes a quarter of the time to start, and 10 MiB.
    const { runner } = await import('node-pg-migrate')
    const done = await runner({
      dbClient: client,
      dir,
      migrationsTable,
      direction,
      count: direction === 'up' ? Infinity : 1,
      advisoryLockMode: 'wait',
      singleTransaction: true,
      log: () => {}
    })
    return done.map(({ name }) => name)
  } finally {
    // Also gives back the lock when a migration failed.
    await client.end()
  }
}

async function isUpToDate (client: Client): Promise<boolean> {
  const ask = async (text: string) => (await client.query({ text, query_timeout: lookTimeoutMs } as QueryConfig)).rows
  const [table] = await ask(`select to_regclass('${migrationsTable}') is not null as exists`)
  if (!table.exists) return false
  const rows = await ask(`select name from ${migrationsTable}`)
  const done = new Set(rows.map(({ name }) => name))
  return (await readdir(dir)).every((file) => done.has(parse(file).name))
}
