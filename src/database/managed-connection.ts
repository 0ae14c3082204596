// Keeps one connection: opened when first needed, and replaced when it is lost or unresponsive.
import { connectionEvents, requestContext, statementEvents } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import type { Connect } from './connector.ts'
import { isStalePlan, toDatabaseError } from './pg-errors.ts'

/** Open connections, closing ones included: hanging statements must not use up those of the server. */
const maxOpen = 3

/** How long statements are rejected after a failed attempt to connect, without another attempt. */
const retryDelayMs = 100

export class ManagedConnection {
  readonly #connect: Connect
  #current: Connection | undefined
  #opening: Promise<Connection> | undefined
  #open = 0
  #waiting = 0
  #failure: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  /** Each sends a pending statement again on the next connection. */
  readonly #hedges = new Set<() => void>()
  /** Closed by this service; any other connection that ends was lost. */
  readonly #closing = new WeakSet<Connection>()

  constructor (connect: Connect) {
    this.#connect = connect
  }

  /** Rejects with DATABASE_UNAVAILABLE, DATABASE_SLOW or the server's error about the statement. */
  async run (statement: Statement, values: unknown[]): Promise<Row[]> {
    const event = statementEvents.hasSubscribers ? startEvent(statement) : undefined
    try {
      const rows = await this.#runOrReplan(statement, values)
      if (event !== undefined) statementEvents.publish(event)
      return rows
    } catch (error) {
      if (event !== undefined) statementEvents.publish({ ...event, error })
      throw toDatabaseError(error)
    }
  }

  /** Like `run`, and sent again on the next connection when this one is replaced as unresponsive. */
  runHedged (statement: Statement, values: unknown[]): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    const first = this.run(statement, values)
    const hedge = () => resolve(firstResult([first, this.run(statement, values)]))
    this.#hedges.add(hedge)
    first.then(resolve, reject).finally(() => this.#hedges.delete(hedge))
    return promise
  }

  /**
   * Statements that wait for a connection or a result. Those of a closing connection don't count,
   * so that they don't keep out requests after the database has come back.
   */
  pending (): number {
    return this.#waiting + (this.#usable()?.pending() ?? 0)
  }

  /** Whether the server spreads tables over several nodes. */
  isDistributed (): boolean {
    return this.#current?.isDistributed ?? false
  }

  /** Resolves when there is a connection. */
  async opened (): Promise<Connection> {
    return this.#usable() ?? await this.#openNext()
  }

  /** Must be called every `tickMs`. True when it replaces an unresponsive connection. */
  tick (): boolean {
    const connection = this.#usable()
    connection?.tick()
    if (!connection?.isUnresponsive() || this.#open >= maxOpen) return false
    connectionEvents.publish({ event: 'timed_out' })
    this.#startClosing(connection)
    const hedges = [...this.#hedges]
    this.#hedges.clear()
    for (const hedge of hedges) hedge()
    return true
  }

  /** Resolves when the connection is closed, after the results of its pending statements. */
  async close (): Promise<void> {
    await Promise.allSettled([this.#opening])
    const connection = this.#usable()
    if (connection === undefined) return
    this.#startClosing(connection)
    await connection.closed
  }

  /** A statement with a stale plan was not executed: it is sent once more, on a connection without plans. */
  async #runOrReplan (statement: Statement, values: unknown[]): Promise<Row[]> {
    const connection = this.#usable() ?? await this.#openForOne()
    try {
      return await connection.run(statement, values)
    } catch (error) {
      if (!isStalePlan(error)) throw error
      this.#startClosing(connection)
      return (this.#usable() ?? await this.#openForOne()).run(statement, values)
    }
  }

  #usable (): Connection | undefined {
    return this.#current?.isOpen() ? this.#current : undefined
  }

  async #openForOne (): Promise<Connection> {
    this.#waiting++
    try {
      return await this.#openNext()
    } finally {
      this.#waiting--
    }
  }

  #openNext (): Promise<Connection> {
    if (performance.now() < this.#failure.until) return Promise.reject(this.#failure.error)
    this.#opening ??= this.#connect().then((connection) => this.#keep(connection), (error) => {
      this.#failure = { until: performance.now() + retryDelayMs, error }
      throw error
    }).finally(() => { this.#opening = undefined })
    return this.#opening
  }

  #keep (connection: Connection): Connection {
    this.#current = connection
    this.#open++
    connectionEvents.publish({ event: 'opened' })
    connection.closed.then(() => {
      this.#open--
      if (!this.#closing.has(connection)) connectionEvents.publish({ event: 'lost' })
    })
    return connection
  }

  #startClosing (connection: Connection): void {
    this.#closing.add(connection)
    connection.close()
  }
}

const startEvent = ({ name }: Statement) =>
  ({ name, startedAt: performance.now(), requestContext: requestContext.getStore() })

/** The error of the first when all fail. */
async function firstResult (attempts: Array<Promise<Row[]>>): Promise<Row[]> {
  try {
    return await Promise.any(attempts)
  } catch (error) {
    throw (error as AggregateError).errors[0]
  }
}
