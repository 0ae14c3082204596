import pg from 'pg'

/** A connection by itself, for the work around the service; requests have openDatabase. */
export function createClient (config: pg.ClientConfig): pg.Client {
  const client = new pg.Client({ connectionTimeoutMillis: 3000, ...config })
  // Without a listener a lost connection would end the process. Whoever waits for an answer is told anyway.
  client.on('error', () => {})
  return client
}
