// One pipelined connection: statements go out without waiting for the answers to those before.
import { Socket } from 'node:net'
import pg from 'pg'
import { endsConnection } from './faults.ts'

/** A row as the server wrote it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Named, so that each connection plans it once. */
export interface Statement {
  name: string
  text: string
}

export interface ConnectionOptions {
  url: string
  /** 0: the role's own limit. */
  statementTimeoutMs: number
}

/** A connection silent for this long with work to do gets no more of it: a new one is opened. */
export const stallMs = 1000

export type Connection = ReturnType<typeof createConnection>

export function createConnection ({ url, statementTimeoutMs }: ConnectionOptions) {
  const socket = new Socket()
  const client = new pg.Client({
    connectionString: url,
    stream: () => socket,
    pipeline: true,
    keepAlive: true,
    // Then every second: a peer that vanished while nothing was asked of it is found out before something is.
    keepAliveInitialDelayMillis: 10_000,
    application_name: 'plant-store',
    statement_timeout: statementTimeoutMs,
    // For a server that no longer answers at all: it ends the connection and
    // with it everything sent on it, so the server's own limit must come first.
    query_timeout: (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
  })
  // What the columns are called and what types they have need not be asked
  // with every statement: values are taken for the text they arrive as.
  Object.assign(client.connection, { describe: () => {} })
  // Without a listener a lost connection would end the process. Whatever was
  // under way is told by its own callback. The client refuses all further
  // statements but leaves it to the server to close.
  client.on('error', () => socket.destroy())
  let running = 0
  let lastAnswer = 0
  let isCorked = false
  let isRetired = false
  let isEnding = false

  function leave (): void {
    client.end()
    // A server that hangs doesn't say goodbye.
    setTimeout(() => socket.destroy(), stallMs).unref()
  }

  return {
    client,
    socket,

    waiting: () => running,

    /** Whether it has had work for a while and answered none of it. */
    isStalled: () => running > 0 && performance.now() - lastAnswer > stallMs,

    /** Whether it was told that it is at its end. */
    isEnding: () => isEnding,

    /** Ends the connection once everything sent on it is answered. */
    retire (): void {
      isRetired = true
      if (running === 0) leave()
    },

    run (statement: Statement, values: unknown[]): Promise<Row[]> {
      if (running++ === 0) lastAnswer = performance.now()
      // One write to the socket for all statements of this turn of the event loop.
      if (!isCorked) {
        isCorked = true
        socket.cork()
        setImmediate(() => {
          isCorked = false
          socket.uncork()
        })
      }
      return new Promise((resolve, reject) => {
        const query = new TextQuery(statement, values, (error?: Error) => {
          lastAnswer = performance.now()
          if (--running === 0 && isRetired) leave()
          if (endsConnection(error)) isEnding = true
          if (error) reject(error)
          else resolve(query.received)
        })
        client.query(query)
      })
    }
  }
}

/** Hands on the text of each value: no row objects, no type conversion, nothing looked up by column name. */
class TextQuery extends pg.Query {
  declare name: string

  constructor ({ name, text }: Statement, values: unknown[], callback: (error?: Error) => void) {
    // With the name apart there is no object of options for pg to copy.
    super(text, values, callback)
    this.name = name
  }

  // Not `rows`: that is an option of the class it extends.
  received: Row[] = []
  handleDataRow ({ fields }: { fields: Row }): void { this.received.push(fields) }
  handleCommandComplete (): void {}
}
