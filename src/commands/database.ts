// Opens the database that a command uses.
import { resolve } from 'node:path'
import type { Config } from '../config.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { migrate } from '../database/migrate.ts'

/** Loads the embedded PostgreSQL server for development. Rejects in the container image, which lacks it. */
export function loadEmbedded (): Promise<typeof import('../../dev/embedded-postgres.ts')> {
  return import('../../dev/embedded-postgres.ts').catch(() => {
    throw new Error('DATABASE_URL is not set: expected a PostgreSQL database, ' +
      'such as postgres://plant_store:secret@localhost:5432/plant_store')
  })
}

/** Calls `work` with DATABASE_URL. Without DATABASE_URL uses the embedded server, and starts it if needed. */
export async function withDatabase (config: Config, work: (url: string) => Promise<void>): Promise<void> {
  if (config.DATABASE_URL !== undefined) return work(config.DATABASE_URL)
  const { findRunning, startEmbedded } = await loadEmbedded()
  // Standard output is reserved for the command's result.
  console.error(`DATABASE_URL is not set: using the PostgreSQL server in ${resolve(config.DATA_DIR)}`)
  const running = await findRunning(config.DATA_DIR)
  if (running !== undefined) return work(running.url)
  const embedded = await startEmbedded(config.DATA_DIR)
  try {
    await work(embedded.url)
  } finally {
    await embedded.close()
  }
}

/** Creates the tables in the embedded server, but not in DATABASE_URL, which may name a wrong database. */
export function withTables (config: Config, work: (url: string) => Promise<void>): Promise<void> {
  return withDatabase(config, async (url) => {
    if (config.DATABASE_URL === undefined && config.MIGRATE === 'on') await migrate(url)
    await work(url)
  })
}

export async function withOpenDatabase (
  config: Config, statementTimeoutMs: number, work: (database: Database) => Promise<void>
): Promise<void> {
  await withTables(config, async (url) => {
    const database = openDatabase({ url, statementTimeoutMs })
    try {
      await work(database)
    } finally {
      await database.close()
    }
  })
}
