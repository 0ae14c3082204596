// Opens the database that a command uses.
import { hostname } from 'node:os'
import { resolve } from 'node:path'
import type pg from 'pg'
import type { Config } from '../config.ts'
import { openClient } from '../database/servers.ts'
import { formatError } from './format.ts'

/** Loads the embedded PostgreSQL server for development. Rejects in the container image, which lacks it. */
export const loadEmbedded = () => import('../../dev/embedded-postgres.ts').catch(() => {
  throw new Error('DATABASE_URL is not set: expected a PostgreSQL database, ' +
    'such as postgres://plant_store:secret@localhost:5432/plant_store')
})

/** Calls `work` with DATABASE_URL. Without DATABASE_URL uses the embedded server, and starts it if needed. */
export async function withDatabase (config: Config, work: (url: string) => Promise<void>): Promise<void> {
  if (config.DATABASE_URL !== undefined) return work(config.DATABASE_URL)
  const { startEmbedded } = await loadEmbedded()
  const { url, isNew, close } = await startEmbedded(config.DATA_DIR)
  // Standard output is reserved for the command's result.
  console.error(`DATABASE_URL is not set: using the PostgreSQL server in ${resolve(config.DATA_DIR)}`)
  if (isNew) {
    console.error('No service uses this folder now. If your service runs, give the command the DATA_DIR or ' +
      'DATABASE_URL of the service.')
  }
  await work(url).finally(close)
}

/** Writes a line to the log of the database server. There, an operator finds commands from any machine. */
export async function logCommand (
  query: (text: string) => Promise<unknown>, command: string, fields: object
): Promise<void> {
  const line = JSON.stringify({ level: 'info', time: new Date(), hostname: hostname(), command, ...fields })
  // PostgreSQL also logs the statement. Encode the line, so that a search finds the line only once.
  const hex = Buffer.from(line).toString('hex')
  await query(`do $$ begin raise log '%', convert_from('\\x${hex}', 'UTF8'); end $$`).catch((error) => {
    console.error(`The log of the database has no line of this command. ${formatError(error)}`)
  })
}

/** Calls `work` with a client. `name` is the command: PostgreSQL shows it as the name of the application. */
export const withClient = (
  config: Config, name: string, options: pg.ClientConfig,
  work: (client: pg.Client, url: string) => Promise<void>
): Promise<void> => withDatabase(config, async (url) => {
  const client = await openClient(url, { application_name: `plant-store ${name}`, ...options })
  await work(client, url).finally(() => closeClient(client))
})

/**
 * The server ends the transaction some 60 s after the network drops the connection. Keepalive probes notice
 * this, and the user timeout if the client has not acknowledged a result. A pooler keeps only local settings.
 */
export const beginTransaction = 'begin; set local tcp_keepalives_idle = 20; ' +
  'set local tcp_keepalives_interval = 5; set local tcp_user_timeout = 60000'

export async function closeClient (client: pg.Client): Promise<void> {
  // A frozen server would never confirm the end of the connection.
  const timer = setTimeout(() => client.connection.stream.destroy(), 1000)
  await client.end()
  clearTimeout(timer)
}
