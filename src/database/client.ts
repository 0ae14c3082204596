// Creates pg's client for a server of the connection string.
import pg from 'pg'
import type { Server } from './connection-string.ts'

/**
 * Creates a client for the server. The connection string may replace an option. If the network drops the
 * packets of an idle connection, the connection ends after some 20 s.
 */
export function createClient ({ fields, mustBind }: Server, options: pg.ClientConfig): pg.Client {
  const given = Object.entries(fields()).filter(([, value]) => value !== undefined)
  const keepAlive = { keepAlive: true, keepAliveInitialDelayMillis: 10_000 }
  const client = new pg.Client({ ...keepAlive, ...options, ...Object.fromEntries(given) })
  if (mustBind) requireBinding(client.connection)
  return client
}

/**
 * Ends the connection before pg logs in without channel binding. With `enableChannelBinding`, pg uses channel
 * binding if the server offers it. No option of pg requires channel binding: an attacker in the middle could
 * ask for the password itself. So this function uses events that pg does not document. Otherwise the service
 * would have to reject `channel_binding=require`, which Neon's connection strings contain.
 */
function requireBinding (connection: pg.Connection): void {
  let isBound = false
  connection.on('authenticationSASL', ({ mechanisms }) => {
    isBound = mechanisms.includes('SCRAM-SHA-256-PLUS')
  })
  for (const kind of ['SASL', 'CleartextPassword', 'MD5Password', 'Ok']) {
    connection.on(`authentication${kind}`, () => {
      if (!isBound) connection.stream.destroy(new Error('the server offers no channel binding'))
    })
  }
}
