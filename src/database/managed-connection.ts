// Keeps one database connection open. Replaces the connection when it is lost or unresponsive.
import { connectionEvents, requestContext, statementEvents, type StatementEvent } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import { isStalePlan, toDatabaseError } from './pg-errors.ts'

/** The limit includes closing connections. Otherwise slow closes could use up the server's connections. */
const maxOpen = 3

/** After a failed attempt to connect, statements are rejected for this long without a new attempt. */
const retryDelayMs = 100

export class ManagedConnection {
  readonly #connect: () => Promise<Connection>
  #current: Connection | undefined
  #opening: Promise<Connection> | undefined
  #open = 0
  #waiting = 0
  #failure: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  readonly #hedges = new Set<() => void>()
  /** The connections that this service closes. Other connections count as lost when they end. */
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

  /** If `check` replaces the connection, repeats the statement on the new one. The first success counts. */
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

  /** Returns how many statements wait for a connection or a result. Ignores closing connections. */
  pending (): number {
    return this.#waiting + (this.#usable()?.pending ?? 0)
  }

  /** Undefined until the first connection is open. */
  isDistributed (): boolean | undefined {
    return this.#current?.isDistributed
  }

  check (): boolean {
    const connection = this.#usable()
    if (!connection?.check() || this.#open >= maxOpen) return false
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

  /** If PostgreSQL rejects the statement because its plan is stale, repeats it on a new connection. */
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
