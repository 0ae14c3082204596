// From a URL to a connection: attempts are made until one succeeds or the time is over.
import { createConnection, type Connection, type ConnectionOptions } from './connection.ts'

const timeoutMs = 3000
/** While an attempt hangs another one is made this often, so that the way back is found soon. */
const retryMs = 500

/** The first of several attempts to succeed; the others are dropped. Rejects when the last one left has failed. */
export function connect (options: ConnectionOptions): Promise<Connection> {
  return new Promise((resolve, reject) => {
    const attempts = new Set<Connection>()
    const attempt = async () => {
      let connection
      try {
        // Throws when a certificate that the URL names can't be read.
        connection = createConnection(options)
        attempts.add(connection)
        await connection.connect()
        attempts.delete(connection)
        finish()
        resolve(connection)
      } catch (error) {
        // The client leaves it open when it has no password to give.
        connection?.closeNow()
        attempts.delete(connection as Connection)
        if (attempts.size > 0) return
        finish()
        reject(error)
      }
    }
    const retry = setInterval(attempt, retryMs)
    const deadline = setTimeout(() => {
      finish()
      reject(new Error(`no connection within ${timeoutMs} ms`))
    }, timeoutMs)
    const finish = () => {
      clearInterval(retry)
      clearTimeout(deadline)
      for (const connection of attempts) connection.closeNow()
    }
    attempt()
  })
}
