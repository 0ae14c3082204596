// Creates pg's client for a server of the connection string.
import pg from 'pg'
import type { Server } from './connection-string.ts'

/** Creates a client for the server. The connection string may replace an option. */
export function createClient ({ fields, mustBind }: Server, options: pg.ClientConfig): pg.Client {
  const given = Object.entries(fields()).filter(([, value]) => value !== undefined)
  const client = new pg.Client({ ...options, ...Object.fromEntries(given) })
  if (mustBind) requireBinding(client.connection)
  return client
}

/**
 * Ends the connection before pg logs in without channel binding. pg's option `enableChannelBinding` uses channel
 * binding only if the server offers it, and no option requires it: a server in the middle could ask for the
 * plain password instead. So this function uses events that pg does not document. Otherwise the service would
 * have to reject `channel_binding=require`, which Neon's connection strings contain.
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
