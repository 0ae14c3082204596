// Plain connections for commands and migrations. Requests use openDatabase.
import pg from 'pg'
import { parseServers } from './connection-string.ts'

/** Returns a client that is not connected yet. */
export function createClient (config: pg.ClientConfig): pg.Client {
  const client = new pg.Client({ connectionTimeoutMillis: 3000, ...config })
  // An unhandled 'error' event would end the process. Pending queries are rejected separately.
  client.on('error', () => {})
  return client
}

/** Returns what pg makes of a connection string, for the log: it has neither user nor password. */
export function describeServers (url: string): Array<{ host: string, port: number, database?: string }> {
  return parseServers(url).urls
    .map((connectionString) => createClient({ connectionString }))
    .map(({ host, port, database }) => ({ host, port, database }))
}
