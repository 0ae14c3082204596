// Opens the database that a command uses.
import { hostname } from 'node:os'
import { resolve } from 'node:path'
import type { Config } from '../config.ts'
import { commandConnectTimeoutMs } from '../database/connection-string.ts'
import type { SessionOptions } from '../database/connection.ts'
import { openDatabase, type Database } from '../database/database.ts'
import { hasResponded } from '../database/pg-errors.ts'
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

const [watchMs, maxUnanswered] = [2000, 5]

/** Opens a database. If the server no longer responds, ends all statements, and aborts the signal. */
export function openWatched (
  url: string, options: SessionOptions
): { database: Database, signal: AbortSignal } {
  const database = openDatabase({ url, maxConnectMs: commandConnectTimeoutMs, ...options })
  const controller = new AbortController()
  // Do not measure the time: Ctrl-Z may stop this process for minutes.
  let unanswered = 0
  setInterval(() => {
    if (unanswered++ >= maxUnanswered) {
      const reason = new Error(`no response within ${maxUnanswered * watchMs} ms`)
      controller.abort(reason)
      database.destroy(reason)
    }
    // A server that accepts no further connection may still run the statements of the command.
    database.readHedged({ name: '', text: 'select' })
      .then(() => { unanswered = 0 }, (error) => { if (hasResponded(error)) unanswered = 0 })
  }, watchMs).unref()
  return { database, signal: controller.signal }
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

/** Calls `work` with the open database, its URL and the signal of `openWatched`, and closes the database. */
export const withOpenDatabase = (
  config: Config, options: SessionOptions,
  work: (database: Database, url: string, signal: AbortSignal) => Promise<void>
): Promise<void> => withDatabase(config, async (url) => {
  const { database, signal } = openWatched(url, options)
  await work(database, url, signal).finally(() => database.close())
})
