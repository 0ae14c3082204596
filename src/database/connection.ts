// One pipelined connection: statements go out without waiting for the answers to those before.
import { Socket } from 'node:net'
import pg from 'pg'
import { isFatal, isNotPrepared, isReadTimeout } from './pg-errors.ts'

// What is borrowed of pg's own. Methods are looked for as this file is loaded: overwritten
// in vain they would be missed by nobody. What each saves is counted in test/database/wire.test.ts.
//   Connection.describe   asks with every statement what its columns are called and which types
//                         they have; here values are taken for the text they arrive as: silenced
//   Connection.stream     the socket, or TLS on it: corked, so that the statements of one turn of
//                         the event loop are one write
//   Query.handleDataRow   makes an object of each row: overwritten
//   Query.name            set apart, since pg copies an object of options, for a microsecond
const overwritten: Array<[owner: { name: string, prototype: object }, method: string]> =
  [[pg.Connection, 'describe'], [pg.Query, 'handleDataRow']]
for (const [{ name, prototype }, method] of overwritten) {
  if (!(method in prototype)) throw new Error(`this version of pg has no ${name}.${method}`)
}

/** A row as the server wrote it: every value as text, in the order of the columns. */
export type Row = Array<string | null>

/** Named, so that each connection plans it once. */
export interface Statement {
  name: string
  /** Where several texts have one name: what each is prepared as. */
  preparedAs?: string
  text: string
}

interface ParameterStatus { parameterName: string, parameterValue: string }

export interface ConnectionOptions {
  url: string
  /** 0: the role's own limit. */
  statementTimeoutMs: number
}

export const tickMs = 100
/**
 * So that writes go on within a second of a promotion that the old primary doesn't know of. In ticks,
 * since a lagging event loop is late for answers and ticks alike.
 */
export const unresponsiveTicks = 8

/** How long a server may take to say goodbye. */
const goodbyeMs = 1000

export class Connection {
  /** Of its server alone. */
  readonly url: string
  /** Resolves when the connection is closed by either side. */
  readonly closed: Promise<void>
  /** Whether the server is a coordinator of Citus. */
  isDistributed = false
  readonly #socket = new Socket()
  readonly #client: pg.Client
  #pending = 0
  #ticksInSilence = 0
  #isCorked = false
  #isOpen = true
  #isReadOnly = false
  readonly #refusals = new Map<string, Error>()
  #timeout: Error | undefined

  constructor ({ url, statementTimeoutMs }: ConnectionOptions) {
    this.url = url
    this.#client = new pg.Client({
      connectionString: url,
      stream: () => this.#socket,
      pipeline: true,
      keepAlive: true,
      // Then every second: a peer that vanished in silence is found out before something is asked of it.
      keepAliveInitialDelayMillis: 10_000,
      application_name: 'plant-store',
      statement_timeout: statementTimeoutMs,
      // For a server that no longer answers at all: the connection is closed then and
      // with it everything sent on it, so the server's own limit must come first.
      query_timeout: (statementTimeoutMs === 0 ? 5000 : statementTimeoutMs) + 1000
    })
    Object.assign(this.#client.connection, { describe: () => {} })
    this.closed = new Promise((resolve) => this.#client.once('end', resolve))
    // Without a listener a lost connection would end the process. Whatever was
    // under way is told by its own callback. The client refuses all further
    // statements but leaves it to the server to close.
    this.#client.on('error', () => this.destroy())
  }

  /** Resolves once it takes statements. Rejects with the server's or the network's word; then close it. */
  async connect (): Promise<void> {
    await this.#client.connect()
  }

  /** Sends a statement at once. Rejects with the server's word on it, or what became of the connection. */
  run (statement: Statement, values: unknown[]): Promise<Row[]> {
    this.#pending++
    this.#cork()
    return new Promise((resolve, reject) => {
      const query = new TextQuery(statement, values, (error?: Error) => {
        this.#pending--
        this.#ticksInSilence = 0
        if (!this.#isOpen || isFatal(error)) this.close()
        if (error) reject(this.#reasonOf(error, query.name))
        // What it read may be out of date: another server may take the writes by now.
        else if (this.#isReadOnly) reject(new Error('the server has become read-only'))
        else {
          this.#refusals.delete(query.name)
          resolve(query.received)
        }
      })
      this.#client.query(query)
      if (this.#pending === 1) this.#uncork()
    })
  }

  /** Behind one that failed others only hear that they are not prepared, or that the connection ended. */
  #reasonOf (error: Error, name: string): Error {
    if (isReadTimeout(error)) this.#timeout = error
    if (this.#timeout !== undefined) return this.#timeout
    if (isNotPrepared(error)) return this.#refusals.get(name) ?? error
    this.#refusals.set(name, error)
    return error
  }

  /** Statements that were sent and have no result yet. */
  pending (): number {
    return this.#pending
  }

  /** To be called every `tickMs`, as far as the event loop gets to it: its clock for silence. */
  tick (): void {
    this.#ticksInSilence = this.#pending === 0 ? 0 : this.#ticksInSilence + 1
  }

  /** From now on it closes when the server reports that it has become read-only. */
  closeWhenReadOnly (): void {
    this.#client.connection.on('parameterStatus', ({ parameterName, parameterValue }: ParameterStatus) => {
      this.#isReadOnly = parameterName === 'default_transaction_read_only' && parameterValue === 'on'
      if (this.#isReadOnly) this.close()
    })
  }

  /** Whether it has had statements waiting for so many ticks and answered none of them. */
  isUnresponsive (): boolean {
    return this.#ticksInSilence >= unresponsiveTicks
  }

  /** False once it was told to close, by us or by the server, or was lost: it takes no more statements. */
  isOpen (): boolean {
    return this.#isOpen
  }

  /** Takes no more statements, and closes when those it has are answered. */
  close (): void {
    this.#isOpen = false
    if (this.#pending > 0) return
    this.#client.end()
    setTimeout(() => this.#socket.destroy(), goodbyeMs).unref()
  }

  /** Closes at once. What was sent on it is rejected, and may have happened. */
  destroy (): void {
    this.#isOpen = false
    this.#socket.destroy()
  }

  /** Lets the process end without it. */
  unref (): void {
    this.#socket.unref()
  }

  /** One write to the socket for all statements of this turn of the event loop, while the server has work. */
  #cork (): void {
    if (this.#isCorked) return
    this.#isCorked = true
    this.#client.connection.stream.cork()
    if (this.#pending > 1) setImmediate(() => this.#uncork())
  }

  #uncork (): void {
    this.#isCorked = false
    this.#client.connection.stream.uncork()
  }
}

/** Hands on the text of each value: no row objects, no type conversion, nothing looked up by column name. */
class TextQuery extends pg.Query {
  declare name: string

  constructor (
    { name, preparedAs = name, text }: Statement, values: unknown[], callback: (error?: Error) => void
  ) {
    super(text, values, callback)
    this.name = preparedAs
  }

  // Not `rows`: that is an option of the class it extends.
  received: Row[] = []
  handleDataRow ({ fields }: { fields: Row }): void { this.received.push(fields) }
}
