// Keeps one database connection open. Replaces the connection when it is lost or unresponsive.
import { connectionEvents, requestContext, statementEvents, type StatementEvent } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import { isStalePlan, toDatabaseError } from './pg-errors.ts'

/** The limit includes closing connections. Otherwise slow closes could use up the server's connections. */
const maxOpen = 3

/** The comments name the next states. `close` leads from every state to `down` until `Infinity`. */
type State =
  | { name: 'down', until: number, error: unknown } // opening, for a statement after the time `until`
  | { name: 'opening', attempt: Promise<Connection>, waiting: number } // open, down
  | { name: 'open', connection: Connection } // opening, after `isOpen` of the connection has become false

export class ManagedConnection {
  readonly #connect: () => Promise<Connection>
  #state: State = { name: 'down', until: 0, error: undefined }
  /** All connections that have not ended. A connection counts as lost unless this service closes it. */
  readonly #connections = new Map<Connection, 'lost' | 'closing'>()
  readonly #hedges = new Set<() => void>()

  constructor (connect: () => Promise<Connection>) {
    this.#connect = connect
  }

  /** If PostgreSQL rejects the statement because its plan is stale, repeats it on a new connection. */
  async run (statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const event: StatementEvent =
      { name: statement.name, startedAt: performance.now(), requestContext: requestContext.getStore() }
    try {
      // Do not always call `opened`: its pause would hide this statement from the next call of `pending`.
      const connection = this.#usable() ?? await this.opened()
      const rows = await connection.run(statement, values).catch(async (error) => {
        if (!isStalePlan(error)) throw error
        this.#startClosing(connection)
        return (await this.opened()).run(statement, values)
      })
      statementEvents.publish(event)
      return rows
    } catch (error) {
      statementEvents.publish({ ...event, error })
      throw toDatabaseError(error)
    }
  }

  /** If `check` replaces the connection, repeats the statement on the new one. The first success counts. */
  runHedged (statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    const first = this.run(statement, values)
    const hedge = () => resolve(Promise.any([first, this.run(statement, values)])
      .catch(({ errors: [error] }) => { throw error }))
    this.#hedges.add(hedge)
    first.then(resolve, reject).finally(() => this.#hedges.delete(hedge))
    return promise
  }

  /** Returns how many statements wait for a connection or a result. Ignores closing connections. */
  pending (): number {
    return this.#state.name === 'opening' ? this.#state.waiting : this.#usable()?.pending ?? 0
  }

  /** Replaces the connection if the server does not respond. */
  check (): void {
    const connection = this.#usable()
    if (!connection?.check() || this.#connections.size >= maxOpen) return
    connectionEvents.publish({ event: 'timed_out' })
    this.#startClosing(connection)
    for (const hedge of this.#hedges) hedge()
    this.#hedges.clear()
  }

  /** Waits for statements that were sent, or wait for an attempt to connect. Rejects later statements. */
  async close (): Promise<void> {
    const usable = this.#usable()
    const attempt = this.#state.name === 'opening' ? this.#state.attempt : undefined
    this.#state = { name: 'down', until: Infinity, error: new Error('the service has closed the database') }
    // The statements that wait for the attempt began to wait earlier, so they are sent before the close.
    const last = usable ?? await attempt?.catch(() => undefined)
    if (last === undefined) return
    this.#startClosing(last)
    await last.closed
  }

  #usable (): Connection | undefined {
    return this.#state.name === 'open' && this.#state.connection.isOpen ? this.#state.connection : undefined
  }

  /** Resolves to the open connection, or opens one. */
  opened (): Promise<Connection> {
    const state = this.#state
    if (state.name === 'opening') {
      state.waiting++
      return state.attempt
    }
    if (state.name === 'open' && state.connection.isOpen) return Promise.resolve(state.connection)
    if (state.name === 'down' && performance.now() < state.until) return Promise.reject(state.error)
    const isFull = this.#connections.size >= maxOpen
    if (isFull) return Promise.reject(new Error(`${maxOpen} earlier connections are still closing`))
    const attempt = this.#open()
    this.#state = { name: 'opening', attempt, waiting: 1 }
    return attempt
  }

  async #open (): Promise<Connection> {
    try {
      const connection = await this.#connect()
      this.#connections.set(connection, 'lost')
      void connection.closed.then(() => {
        if (this.#connections.get(connection) === 'lost') connectionEvents.publish({ event: 'lost' })
        this.#connections.delete(connection)
      })
      connectionEvents.publish({ event: 'opened' })
      if (this.#state.name === 'opening') this.#state = { name: 'open', connection }
      return connection
    } catch (error) {
      // Reject statements for 100 ms. Otherwise each statement would start a new attempt to connect.
      const until = performance.now() + 100
      if (this.#state.name === 'opening') this.#state = { name: 'down', until, error }
      throw error
    }
  }

  #startClosing (connection: Connection): void {
    if (this.#connections.has(connection)) this.#connections.set(connection, 'closing')
    connection.close()
  }
}
