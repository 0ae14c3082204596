// A pipelined connection: sends a statement without waiting for the results of earlier statements.
import pg from 'pg'
import { isFatal, isNotPrepared, isReadTimeout } from './pg-errors.ts'

// This file replaces two private methods of pg, to save time. pg's `Connection.describe` requests the columns
// of every statement. pg's `Query.handleDataRow` makes each row an object.
// Test: test/database/connections.test.ts.

/** A row as the server sends it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Each connection prepares the statement once, at the first use. */
export interface Statement {
  name: string
  /** The name of the prepared statement, `name` by default. Set this if several texts share one `name`. */
  preparedAs?: string
  text: string
}

export interface ConnectionOptions {
  url: string
  /** 0 leaves the limit to the database role. */
  statementTimeoutMs: number
}

export const checkMs = 100

/** A connection with pending statements is unresponsive after this many checks without a result. */
const maxChecks = 8

export class Connection {
  readonly url: string
  readonly closed: Promise<void>
  isOpen = true
  /** The number of statements that were sent and have no result yet. */
  pending = 0
  readonly #client: pg.Client
  #checksWithoutResult = 0
  #isReadOnly = false
  /** The last error of each statement, by `preparedAs`. A success removes the error. */
  readonly #preparationErrors = new Map<string, Error>()
  #timeout: Error | undefined

  constructor ({ url, statementTimeoutMs }: ConnectionOptions) {
    this.url = url
    this.#client = new pg.Client({
      connectionString: url,
      pipeline: true,
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      application_name: 'plant-store',
      statement_timeout: statementTimeoutMs,
      // Ends an unresponsive connection. Must exceed `statement_timeout`, which ends only a slow statement.
      query_timeout: (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
    })
    Object.assign(this.#client.connection, { describe: () => {} })
    this.closed = new Promise((resolve) => this.#client.once('end', resolve))
    // An unhandled 'error' event would crash the process.
    this.#client.on('error', () => this.destroy())
  }

  /** If the returned promise rejects, call `destroy`. */
  async connect (): Promise<void> {
    await this.#client.connect()
    this.#client.connection.on('parameterStatus', ({ parameterName: name, parameterValue: value }) => {
      this.#isReadOnly ||= name === 'default_transaction_read_only' && value === 'on'
      if (this.#isReadOnly) this.close()
    })
  }

  run ({ name, preparedAs = name, text }: Statement, values: unknown[]): Promise<Row[]> {
    const { stream } = this.#client.connection
    // While results are pending, send all statements of one iteration of the event loop in one write.
    if (this.pending > 0 && stream.writableCorked === 0) {
      stream.cork()
      setImmediate(() => stream.uncork())
    }
    // No statement is pending that an earlier failed preparation could concern.
    if (this.pending === 0) this.#preparationErrors.clear()
    this.pending++
    return new Promise((resolve, reject) => {
      const rows: Row[] = []
      const query = new pg.Query(text, values, (error) => {
        this.pending--
        this.#checksWithoutResult = 0
        if (!this.isOpen || isFatal(error)) this.close()
        if (error) reject(this.#causeOf(error, preparedAs))
        // Another server may have become the primary, so this result may be out of date.
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

  /** Returns the first error. After a failed preparation or a timeout, later errors are only effects. */
  #causeOf (error: Error, preparedAs: string): Error {
    if (isReadTimeout(error)) this.#timeout = error
    if (this.#timeout !== undefined) return this.#timeout
    if (isNotPrepared(error)) return this.#preparationErrors.get(preparedAs) ?? error
    this.#preparationErrors.set(preparedAs, error)
    return error
  }

  /** Call this every `checkMs`. Returns whether pending statements got no result for `maxChecks`. */
  check (): boolean {
    this.#checksWithoutResult = this.pending === 0 ? 0 : this.#checksWithoutResult + 1
    return this.#checksWithoutResult >= maxChecks
  }

  /** Sets `isOpen` to false. Closes the connection as soon as no statement is pending. */
  close (): void {
    this.isOpen = false
    if (this.pending > 0) return
    void this.#client.end()
    setTimeout(() => this.destroy(), 1000).unref()
  }

  destroy (): void {
    this.isOpen = false
    this.#client.connection.stream.destroy()
  }
}
