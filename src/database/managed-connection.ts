// Keeps one database connection: opens it at its first use, and replaces it when it is lost or unresponsive.
import { connectionEvents, requestContext, statementEvents, type StatementEvent } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import { isStalePlan, toDatabaseError } from './pg-errors.ts'

/** Includes closing connections: hanging statements must not use up the connections of the server. */
const maxOpen = 3

/** For this long after a failed attempt to connect, statements are rejected without another attempt. */
const retryDelayMs = 100

export class ManagedConnection {
  readonly #connect: () => Promise<Connection>
  #current: Connection | undefined
  #opening: Promise<Connection> | undefined
  #open = 0
  #waiting = 0
  #failure: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  readonly #hedges = new Set<() => void>()
  /** The connections that this service closes. Any other connection that ends was lost. */
  readonly #closing = new WeakSet<Connection>()

  constructor (connect: () => Promise<Connection>) {
    this.#connect = connect
  }

  async run (statement: Statement, values: unknown[]): Promise<Row[]> {
    const event: StatementEvent =
      { name: statement.name, startedAt: performance.now(), requestContext: requestContext.getStore() }
    try {
      const rows = await this.#runOrReplan(statement, values)
      statementEvents.publish(event)
      return rows
    } catch (error) {
      statementEvents.publish({ ...event, error })
      throw toDatabaseError(error)
    }
  }

  /** If `tick` replaces the connection, the next one also gets the statement. The first success counts. */
  runHedged (statement: Statement, values: unknown[]): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    const first = this.run(statement, values)
    const hedge = () => resolve(Promise.any([first, this.run(statement, values)]).catch(({ errors }) => {
      throw errors[0]
    }))
    this.#hedges.add(hedge)
    first.then(resolve, reject).finally(() => this.#hedges.delete(hedge))
    return promise
  }

  /** Statements that wait for a connection or a result. Statements on a closing connection don't count. */
  pending (): number {
    return this.#waiting + (this.#usable()?.pending ?? 0)
  }

  /** Undefined until the first connection is open. */
  isDistributed (): boolean | undefined {
    return this.#current?.isDistributed
  }

  tick (): boolean {
    const connection = this.#usable()
    if (!connection?.tick() || this.#open >= maxOpen) return false
    connectionEvents.publish({ event: 'timed_out' })
    this.#startClosing(connection)
    const hedges = [...this.#hedges]
    this.#hedges.clear()
    for (const hedge of hedges) hedge()
    return true
  }

  async close (): Promise<void> {
    await Promise.allSettled([this.#opening])
    const connection = this.#usable()
    if (connection === undefined) return
    this.#startClosing(connection)
    await connection.closed
  }

  /** PostgreSQL does not execute a statement with a stale plan, so send it again on a new connection. */
  async #runOrReplan (statement: Statement, values: unknown[]): Promise<Row[]> {
    const connection = this.#usable() ?? await this.opened()
    try {
      return await connection.run(statement, values)
    } catch (error) {
      if (!isStalePlan(error)) throw error
      this.#startClosing(connection)
      return (await this.opened()).run(statement, values)
    }
  }

  #usable (): Connection | undefined {
    return this.#current?.isOpen ? this.#current : undefined
  }

  async opened (): Promise<Connection> {
    const usable = this.#usable()
    if (usable !== undefined) return usable
    if (performance.now() < this.#failure.until) throw this.#failure.error
    this.#opening ??= this.#openNext().finally(() => { this.#opening = undefined })
    this.#waiting++
    try {
      return await this.#opening
    } finally {
      this.#waiting--
    }
  }

  async #openNext (): Promise<Connection> {
    try {
      const connection = await this.#connect()
      this.#current = connection
      this.#open++
      connectionEvents.publish({ event: 'opened' })
      connection.closed.then(() => {
        this.#open--
        if (!this.#closing.has(connection)) connectionEvents.publish({ event: 'lost' })
      })
      return connection
    } catch (error) {
      this.#failure = { until: performance.now() + retryDelayMs, error }
      throw error
    }
  }

  #startClosing (connection: Connection): void {
    this.#closing.add(connection)
    connection.close()
  }
}
