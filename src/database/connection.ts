// One pipelined connection: statements are sent without waiting for the results of earlier ones.
import { Socket } from 'node:net'
import pg from 'pg'
import { isFatal, isNotPrepared, isReadTimeout } from './pg-errors.ts'

// Overrides two private methods of pg, see test/database/wire.test.ts: `Connection.describe` asks for the
// columns of every statement, and `Query.handleDataRow` makes an object of each row.

/** A row as the server wrote it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Each connection plans a statement once and knows it by its name. */
export interface Statement {
  name: string
  /** The name on the connection, for texts that share a name in metrics. */
  preparedAs?: string
  text: string
}

export interface ConnectionOptions {
  url: string
  /** 0: the role's own limit. */
  statementTimeoutMs: number
}

export const tickMs = 100

/** Ticks and not milliseconds: a lagging event loop reads results late and ticks late. */
export const unresponsiveTicks = 8

const closeTimeoutMs = 1000

export class Connection {
  readonly url: string
  /** Resolves when the connection is closed by either side. */
  readonly closed: Promise<void>
  isOpen = true
  /** Statements that were sent and have no result yet. */
  pending = 0
  isDistributed = false
  readonly #socket = new Socket()
  readonly #client: pg.Client
  #unresponsiveTicks = 0
  #isReadOnly = false
  /** The first error of each statement that could not be prepared. */
  readonly #preparationErrors = new Map<string, Error>()
  #timeout: Error | undefined

  constructor ({ url, statementTimeoutMs }: ConnectionOptions) {
    this.url = url
    this.#client = new pg.Client({
      connectionString: url,
      stream: () => this.#socket,
      pipeline: true,
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      application_name: 'plant-store',
      statement_timeout: statementTimeoutMs,
      // For an unresponsive server. It ends the connection, so the server's own limit must come first.
      query_timeout: (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
    })
    Object.assign(this.#client.connection, { describe: () => {} })
    this.closed = new Promise((resolve) => this.#client.once('end', resolve))
    // An unhandled 'error' event would end the process. Pending statements are rejected separately.
    this.#client.on('error', () => this.destroy())
  }

  /** Rejects with the error of the server or the network. Then call `destroy`. */
  connect (): Promise<unknown> {
    return this.#client.connect()
  }

  run ({ name, preparedAs = name, text }: Statement, values: unknown[]): Promise<Row[]> {
    const { stream } = this.#client.connection
    // A busy server gets the statements of a tick in one write.
    if (this.pending > 0 && stream.writableCorked === 0) {
      stream.cork()
      setImmediate(() => stream.uncork())
    }
    this.pending++
    return new Promise((resolve, reject) => {
      const rows: Row[] = []
      const query = new pg.Query(text, values, (error) => {
        this.pending--
        this.#unresponsiveTicks = 0
        if (!this.isOpen || isFatal(error)) this.close()
        if (error) reject(this.#causeOf(error, preparedAs))
        // The result may be out of date when another server takes the writes.
        else if (this.#isReadOnly) reject(new Error('the server has become read-only'))
        else {
          this.#preparationErrors.delete(preparedAs)
          resolve(rows)
        }
      })
      const handleDataRow = ({ fields }: { fields: Row }) => { rows.push(fields) }
      this.#client.query(Object.assign(query, { name: preparedAs, handleDataRow }))
    })
  }

  /** Later statements only learn that they are not prepared, or that the connection has ended. */
  #causeOf (error: Error, preparedAs: string): Error {
    if (isReadTimeout(error)) this.#timeout = error
    if (this.#timeout !== undefined) return this.#timeout
    if (isNotPrepared(error)) return this.#preparationErrors.get(preparedAs) ?? error
    this.#preparationErrors.set(preparedAs, error)
    return error
  }

  /** Must be called every `tickMs`. True when pending statements get no result for `unresponsiveTicks`. */
  tick (): boolean {
    this.#unresponsiveTicks = this.pending === 0 ? 0 : this.#unresponsiveTicks + 1
    return this.#unresponsiveTicks >= unresponsiveTicks
  }

  closeWhenReadOnly (): void {
    this.#client.connection.on('parameterStatus', ({ parameterName: name, parameterValue: value }) => {
      this.#isReadOnly = name === 'default_transaction_read_only' && value === 'on'
      if (this.#isReadOnly) this.close()
    })
  }

  /** Takes no more statements, and closes after the results of the pending ones. */
  close (): void {
    this.isOpen = false
    if (this.pending > 0) return
    this.#client.end()
    setTimeout(() => this.#socket.destroy(), closeTimeoutMs).unref()
  }

  destroy (): void {
    this.isOpen = false
    this.#socket.destroy()
  }

  unref (): void {
    this.#socket.unref()
  }
}
