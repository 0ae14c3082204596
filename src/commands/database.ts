// Opens the database that a command uses.
import { hostname } from 'node:os'
import { resolve } from 'node:path'
import type { Config } from '../config.ts'
import { openDatabase, type Database, type DatabaseOptions } from '../database/database.ts'
import { formatError } from './format.ts'

/** Loads the embedded PostgreSQL server for development. Rejects in the container image, which lacks it. */
export const loadEmbedded = () => import('../../dev/embedded-postgres.ts').catch(() => {
  throw new Error('DATABASE_URL is not set: expected a PostgreSQL database, ' +
    'such as postgres://plant_store:secret@localhost:5432/plant_store')
})

/** Calls `work` with DATABASE_URL. Without DATABASE_URL uses the embedded server, and starts it if needed. */
export async function withDatabase (config: Config, work: (url: string) => Promise<void>): Promise<void> {
  if (config.DATABASE_URL !== undefined) return work(config.DATABASE_URL)
  const { findRunning, startEmbedded } = await loadEmbedded()
  const running = await findRunning(config.DATA_DIR)
  // Standard output is reserved for the command's result.
  console.error(`DATABASE_URL is not set: using the PostgreSQL server in ${resolve(config.DATA_DIR)}`)
  if (running === undefined) {
    console.error('No service uses this folder now. If your service runs, give the command the DATA_DIR or ' +
      'DATABASE_URL of the service.')
  }
  const { url, close } = running ?? await startEmbedded(config.DATA_DIR)
  await work(url).finally(close)
}

/** Writes a line to the log of the database server. There, an operator finds commands from any machine. */
export async function logCommand (database: Database, command: string, fields: object): Promise<void> {
  const line = JSON.stringify({ level: 'info', time: new Date(), hostname: hostname(), command, ...fields })
  // PostgreSQL also logs the statement. Encode the line, so that a search finds the line only once.
  const hex = Buffer.from(line).toString('hex')
  const text = `do $$ begin raise log '%', convert_from('\\x${hex}', 'UTF8'); end $$`
  await database.write({ name: '', text }).catch((error) => {
    console.error(`The log of the database has no line of this command. ${formatError(error)}`)
  })
}

/** Calls `work` with the open database, its URL and a signal, and closes the database. */
export const withOpenDatabase = (
  config: Config, options: Omit<DatabaseOptions, 'url'>,
  work: (database: Database, url: string, signal: AbortSignal) => Promise<void>
): Promise<void> => withDatabase(config, async (url) => {
  const database = openDatabase({ url, ...options })
  await work(database, url, new AbortController().signal).finally(() => database.close())
})
