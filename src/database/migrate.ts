import { join } from 'node:path'
import { runner } from 'node-pg-migrate'
import pg from 'pg'

const lockTimeoutMs = 30_000

/**
 * Brings the schema up to date, or takes back the newest migration. All or
 * nothing, and one at a time however many instances start together: the others
 * wait, and find it done. Returns the names of the migrations it ran.
 */
export async function migrate (url: string, direction: 'up' | 'down'): Promise<string[]> {
  // Bounds the wait for another instance's migrations, which the library does not.
  const client = new pg.Client({ connectionString: url, lock_timeout: lockTimeoutMs, connectionTimeoutMillis: 3000 })
  client.on('error', () => {})
  try {
    await client.connect()
    const done = await runner({
      dbClient: client,
      dir: join(import.meta.dirname, '../../migrations'),
      migrationsTable: 'migrations',
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
