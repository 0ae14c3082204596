// Plain connections, for commands and migrations.
import pg from 'pg'

/** Not connected yet. Requests have openDatabase. */
export function createClient (config: pg.ClientConfig): pg.Client {
  const client = new pg.Client({ connectionTimeoutMillis: 3000, ...config })
  // Without a listener a lost connection would end the process. Whoever waits for an answer is told anyway.
  client.on('error', () => {})
  return client
}
