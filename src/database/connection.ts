// A pipelined connection: sends a statement without waiting for the results of earlier statements.
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { createClient } from './client.ts'
import type { Server } from './connection-string.ts'
import { isFatal, isNotPrepared, isStalePlan } from './pg-errors.ts'

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

export interface SessionOptions {
  /** 0 leaves the limit to the database role. */
  statementTimeoutMs: number
  /** PostgreSQL shows this name, unless the connection string has another one. */
  applicationName?: string
}

const checkMs = 100

/** A connection with pending statements is late, or unresponsive, after this many checks without a result. */
const [lateChecks, maxChecks] = [2, 8]

/** A statement that was sent and has no result yet. */
class PendingQuery extends pg.Query {
  /** The name of the prepared statement. */
  declare name: string
  readonly sentAt = performance.now()
  readonly found: Row[] = []
  onUnresponsive: (() => void) | undefined

  handleDataRow ({ fields }: { fields: Row }): void {
    this.found.push(fields)
  }
}

export class Connection {
  readonly server: Server
  readonly closed: Promise<void>
  isOpen = true
  /** Called when the connection becomes unresponsive while it is open. */
  onUnresponsive: (() => void) | undefined
  readonly #client: pg.Client
  /** Must exceed `statement_timeout`, which ends only a slow statement. */
  readonly #maxMs: number
  #checksWithoutResult = 0
  #isReadOnly = false
  /** A part of the names of prepared statements. Grows when the server has no valid plan for a statement. */
  #generation = 0
  /** The last error of each prepared statement, by its name. A success removes the error. */
  readonly #preparationErrors = new Map<string, Error>()
  /** Results arrive in the order of the statements. */
  readonly #pending: PendingQuery[] = []

  constructor (server: Server, { statementTimeoutMs, applicationName = 'plant-store' }: SessionOptions) {
    this.server = server
    this.#client = createClient(server, {
      pipeline: true,
      application_name: applicationName,
      statement_timeout: statementTimeoutMs
    })
    Object.assign(this.#client.connection, { describe: () => {} })
    this.closed = new Promise((resolve) => this.#client.once('end', resolve))
    // An unhandled 'error' event would crash the process.
    this.#client.on('error', () => this.destroy())
    this.#maxMs = (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
    const timer = setInterval(() => this.check(), checkMs).unref()
    void this.closed.then(() => clearInterval(timer))
  }

  /** The number of statements that were sent and have no result yet. */
  get pending (): number {
    return this.#pending.length
  }

  /** Resolves to the process id of the session. A pooler invents one. If this rejects, call `destroy`. */
  async connect (): Promise<number> {
    const { connection } = this.#client
    let processId = 0
    connection.once('backendKeyData', ({ processID }) => { processId = processID })
    await this.#client.connect()
    connection.on('parameterStatus', ({ parameterName: name, parameterValue: value }) => {
      this.#isReadOnly ||= name === 'default_transaction_read_only' && value === 'on'
      if (this.#isReadOnly) this.close()
    })
    return processId
  }

  /**
   * If PostgreSQL rejects the statement because its plan is stale, sends the statement once more.
   * `onUnresponsive` is called at most once: when the connection becomes unresponsive before the result.
   */
  run (
    statement: Statement, values: unknown[], onUnresponsive?: () => void, isRetry = false
  ): Promise<Row[]> {
    const { stream } = this.#client.connection
    // While results are pending, send all statements of one iteration of the event loop in one write.
    if (this.pending > 0 && stream.writableCorked === 0) {
      stream.cork()
      setImmediate(() => stream.uncork())
    }
    // No statement is pending that an earlier failed preparation could concern.
    if (this.pending === 0) this.#preparationErrors.clear()
    const generation = this.#generation
    const name = `${generation || ''}${statement.preparedAs ?? statement.name}`
    return new Promise((resolve, reject) => {
      // With an object instead of the first two arguments, this constructor takes eight times as long.
      const query = new PendingQuery(statement.text, values, (error) => {
        this.#checksWithoutResult = 0
        this.#pending.shift()
        const cause = error && this.#causeOf(error, name)
        const isStale = cause && !isRetry && isStalePlan(cause)
        if (isStale) {
          this.#generation = Math.max(this.#generation, generation + 1)
          resolve(this.run(statement, values, query.onUnresponsive, true))
        }
        if (!this.isOpen || isFatal(error)) this.close()
        if (isStale) return
        if (cause) return reject(cause)
        // Another server may have become the primary, so this result may be out of date.
        if (this.#isReadOnly) return reject(new Error('the server has become read-only'))
        this.#preparationErrors.delete(name)
        resolve(query.found)
      })
      query.name = name
      query.onUnresponsive = onUnresponsive
      this.#pending.push(query)
      this.#client.query(query)
    })
  }

  /** Returns the first error. After a failed preparation, later errors are only effects. */
  #causeOf (error: Error, name: string): Error {
    if (isNotPrepared(error)) return this.#preparationErrors.get(name) ?? error
    this.#preparationErrors.set(name, error)
    return error
  }

  /**
   * Runs every `checkMs`. pg's `query_timeout` would make a timer for each statement: see
   * docs/design/037-latency.md.
   */
  check (): void {
    const [oldest] = this.#pending
    this.#checksWithoutResult = oldest === undefined ? 0 : this.#checksWithoutResult + 1
    if (oldest !== undefined && performance.now() - oldest.sentAt > this.#maxMs) {
      // Read the result first if it arrived while the event loop was blocked.
      setImmediate(() => {
        if (oldest !== this.#pending[0]) return
        this.destroy(new ApiError(errors.DATABASE_SLOW, { cause: new Error('no result in time') }))
      })
    }
    if (this.#checksWithoutResult !== maxChecks) return
    if (this.isOpen) this.onUnresponsive?.()
    for (const query of this.#pending) {
      query.onUnresponsive?.()
      query.onUnresponsive = undefined
    }
  }

  /** The next result makes this false again, as `isUnresponsive`. */
  get isLate (): boolean {
    return this.#checksWithoutResult >= lateChecks
  }

  get isUnresponsive (): boolean {
    return this.#checksWithoutResult >= maxChecks
  }

  /** Sets `isOpen` to false. Closes the connection as soon as no statement is pending. */
  close (): void {
    this.isOpen = false
    if (this.pending > 0) return
    void this.#client.end()
    setTimeout(() => this.destroy(), 1000).unref()
  }

  destroy (reason?: Error): void {
    this.isOpen = false
    this.#client.connection.stream.destroy(reason)
  }
}
