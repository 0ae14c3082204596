// A pipelined connection: sends a statement without waiting for the results of earlier statements.
import pg from 'pg'
import type { Server } from './connection-string.ts'
import { isFatal, isNotPrepared, isStalePlan, ReadTimeout } from './pg-errors.ts'

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

export const checkMs = 100

/** A connection with pending statements is late, or unresponsive, after this many checks without a result. */
const [lateChecks, maxChecks] = [2, 8]

export class Connection {
  readonly server: Server
  readonly closed: Promise<void>
  isOpen = true
  readonly #client: pg.Client
  #checksWithoutResult = 0
  #isReadOnly = false
  /** A part of the names of prepared statements. Grows when the server has no valid plan for a statement. */
  #generation = 0
  /** The last error of each prepared statement, by its name. A success removes the error. */
  readonly #preparationErrors = new Map<string, Error>()
  /** When each pending statement was sent. Results arrive in the same order. */
  readonly #sentAt: number[] = []

  constructor (server: Server, { statementTimeoutMs, applicationName = 'plant-store' }: SessionOptions) {
    this.server = server
    this.#client = createClient(server, {
      pipeline: true,
      keepAlive: true,
      keepAliveInitialDelayMillis: 10_000,
      application_name: applicationName,
      statement_timeout: statementTimeoutMs
    })
    Object.assign(this.#client.connection, { describe: () => {} })
    this.closed = new Promise((resolve) => this.#client.once('end', resolve))
    // An unhandled 'error' event would crash the process.
    this.#client.on('error', () => this.destroy())
    // Must exceed `statement_timeout`, which ends only a slow statement.
    const maxMs = (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
    // pg's `query_timeout` would make a timer for each statement: see docs/design/037-latency.md.
    const timer = setInterval(() => {
      if (performance.now() - (this.#sentAt[0] ?? Infinity) > maxMs) this.destroy(new ReadTimeout())
    }, checkMs).unref()
    void this.closed.then(() => clearInterval(timer))
  }

  /** The number of statements that were sent and have no result yet. */
  get pending (): number {
    return this.#sentAt.length
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

  /** If PostgreSQL rejects the statement because its plan is stale, sends the statement once more. */
  run (statement: Statement, values: unknown[], isRetry = false): Promise<Row[]> {
    const { stream } = this.#client.connection
    // While results are pending, send all statements of one iteration of the event loop in one write.
    if (this.pending > 0 && stream.writableCorked === 0) {
      stream.cork()
      setImmediate(() => stream.uncork())
    }
    // No statement is pending that an earlier failed preparation could concern.
    if (this.pending === 0) this.#preparationErrors.clear()
    this.#sentAt.push(performance.now())
    const generation = this.#generation
    const name = `${generation || ''}${statement.preparedAs ?? statement.name}`
    return new Promise((resolve, reject) => {
      const rows: Row[] = []
      const query = new pg.Query(statement.text, values, (error) => {
        this.#checksWithoutResult = 0
        this.#sentAt.shift()
        const cause = error && this.#causeOf(error, name)
        const isStale = cause && !isRetry && isStalePlan(cause)
        if (isStale) {
          this.#generation = Math.max(this.#generation, generation + 1)
          resolve(this.run(statement, values, true))
        }
        if (!this.isOpen || isFatal(error)) this.close()
        if (isStale) return
        if (cause) return reject(cause)
        // Another server may have become the primary, so this result may be out of date.
        if (this.#isReadOnly) return reject(new Error('the server has become read-only'))
        this.#preparationErrors.delete(name)
        resolve(rows)
      })
      const handleDataRow = ({ fields }: { fields: Row }) => { rows.push(fields) }
      this.#client.query(Object.assign(query, { name, handleDataRow }))
    })
  }

  /** Returns the first error. After a failed preparation, later errors are only effects. */
  #causeOf (error: Error, name: string): Error {
    if (isNotPrepared(error)) return this.#preparationErrors.get(name) ?? error
    this.#preparationErrors.set(name, error)
    return error
  }

  /** Call this every `checkMs`. Returns true once, when the connection becomes unresponsive. */
  check (): boolean {
    this.#checksWithoutResult = this.pending === 0 ? 0 : this.#checksWithoutResult + 1
    return this.#checksWithoutResult === maxChecks
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

/** Creates a client for the server. The connection string may replace an option. */
export function createClient ({ fields, mustBind }: Server, options: pg.ClientConfig): pg.Client {
  const given = Object.entries(fields()).filter(([, value]) => value !== undefined)
  const client = new pg.Client({ ...options, ...Object.fromEntries(given) })
  if (mustBind) requireBinding(client.connection)
  return client
}

/** pg uses channel binding if the server offers it. Otherwise, end the connection before pg logs in. */
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
