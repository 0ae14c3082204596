// One connection's place: opened when first needed, replaced when lost or stalled.
import { createConnection, type Connection, type ConnectionOptions, type Row, type Statement } from './connection.ts'
import { toApiError } from './faults.ts'

/** How many given up connections of a place may still be open. Statements that hang for long shall not use up the server's connections. */
const mostRetired = 2

const connectTimeoutMs = 3000
/** While a connection attempt hangs another one is made this often, so that the way back is found soon. */
const connectRetryMs = 500
/** After a refused attempt, how long requests are answered without trying again. */
const connectPauseMs = 100

export type Lane = ReturnType<typeof openLane>

export function openLane (options: ConnectionOptions) {
  let current: Connection | undefined
  let opening: Promise<Connection> | undefined
  let pause: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  let retired = 0

  function open (): Promise<Connection> {
    if (performance.now() < pause.until) return Promise.reject(pause.error)
    opening ??= firstToConnect(options).then(
      (connection) => {
        connection.client.once('end', () => { if (current === connection) current = undefined })
        current = connection
        return connection
      },
      (error) => {
        pause = { until: performance.now() + connectPauseMs, error }
        throw error
      }
    ).finally(() => { opening = undefined })
    return opening
  }

  let queued = 0
  async function opened (): Promise<Connection> {
    queued++
    try {
      return await open()
    } finally {
      queued--
    }
  }

  return {
    /**
     * How much is under way. A connection that has stalled is given up, and
     * what it has doesn't count any more: it must not keep out those who come
     * when the database is back.
     */
    waiting (): number {
      if (current?.isEnding() || (current?.isStalled() && retired < mostRetired)) {
        retired++
        current.client.once('end', () => { retired-- })
        current.retire()
        current = undefined
      }
      return queued + (current?.waiting() ?? 0)
    },

    async run (statement: Statement, values: unknown[]): Promise<Row[]> {
      try {
        return await (current ?? await opened()).run(statement, values)
      } catch (error) {
        throw toApiError(error)
      }
    },

    async close (): Promise<void> {
      await Promise.allSettled([opening])
      if (current === undefined) return
      const { client } = current
      // Not `once`, which would reject when the connection breaks instead.
      const ended = new Promise((resolve) => client.once('end', resolve))
      current.retire()
      await ended
    }
  }
}

/** The first of several attempts to succeed; the others are dropped. */
function firstToConnect (options: ConnectionOptions): Promise<Connection> {
  return new Promise((resolve, reject) => {
    const attempts = new Set<Connection>()
    const attempt = async () => {
      let connection
      try {
        // Throws when a certificate that the URL names can't be read.
        connection = createConnection(options)
        attempts.add(connection)
        await connection.client.connect()
        attempts.delete(connection)
        finish()
        resolve(connection)
      } catch (error) {
        // The client leaves it open when it has no password to give.
        connection?.socket.destroy()
        attempts.delete(connection as Connection)
        if (attempts.size > 0) return
        finish()
        reject(error)
      }
    }
    const retry = setInterval(attempt, connectRetryMs)
    const deadline = setTimeout(() => {
      finish()
      reject(new Error(`no connection within ${connectTimeoutMs} ms`))
    }, connectTimeoutMs)
    const finish = () => {
      clearInterval(retry)
      clearTimeout(deadline)
      for (const { socket } of attempts) socket.destroy()
    }
    attempt()
  })
}
