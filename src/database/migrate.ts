import { readdir } from 'node:fs/promises'
import { join, parse } from 'node:path'
import type { Client } from 'pg'
import { ApiError } from '../errors.ts'
import { createClient } from './client.ts'

const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'
const lockTimeoutMs = 30_000

/**
 * Brings the schema up to date, or takes back the newest migration. All or
 * nothing, and one at a time however many instances start together: the others
 * wait, and find it done. Returns the names of the migrations it ran.
 */
export async function migrate (url: string, direction: 'up' | 'down'): Promise<string[]> {
  // Bounds the wait for another instance's migrations, which the library does not.
  const client = createClient({ connectionString: url, lock_timeout: lockTimeoutMs })
  try {
    await client.connect().catch((cause) => { throw new ApiError('DATABASE_UNAVAILABLE', { cause }) })
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
  const { rows: [table] } = await client.query('select to_regclass($1) is not null as exists', [migrationsTable])
  if (!table.exists) return false
  const { rows } = await client.query(`select name from ${migrationsTable}`)
  const done = new Set(rows.map(({ name }) => name))
  return (await readdir(dir)).every((file) => done.has(parse(file).name))
}
