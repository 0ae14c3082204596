// Chooses an open connection for each statement.
import pg from 'pg'
import { connectionEvents, requestContext, statementEvents, type StatementEvent } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import type { ManagedConnection } from './managed-connection.ts'
import { toDatabaseError } from './pg-errors.ts'

/** Called right before the statement is sent. */
type OnSend = (connection: Connection) => void

export class ConnectionSet {
  readonly #all: ManagedConnection[]
  /** The functions that repeat hedged statements, with the connections that run the statements. */
  readonly #hedges = new Map<() => void, Connection>()
  #running = 0
  #closing: PromiseWithResolvers<void> | undefined

  constructor (all: ManagedConnection[]) {
    this.#all = all
  }

  /** Runs the statement on one of `own`. While none of them is usable, any other connection runs it. */
  async run (own: ManagedConnection[], statement: Statement, values: unknown[] = [], onSend?: OnSend) {
    const event: StatementEvent =
      { name: statement.name, startedAt: performance.now(), requestContext: requestContext.getStore() }
    this.#running++
    try {
      if (this.#closing !== undefined) throw new Error('the service has closed the database')
      // Do not always call `#choose`: its pause would hide this statement from the next call of `pending`.
      const connection = leastBusy(own)?.usable() ?? await this.#choose(own)
      onSend?.(connection)
      const rows = await connection.run(statement, values)
      statementEvents.publish(event)
      return rows
    } catch (error) {
      statementEvents.publish({ ...event, error })
      throw toDatabaseError(error)
    } finally {
      if (--this.#running === 0) this.#closing?.resolve()
    }
  }

  /** Waits for a new connection, but only for a moment if another connection is prompt. */
  async #choose (own: ManagedConnection[]): Promise<Connection> {
    const usable = (some: ManagedConnection[]) => leastBusy(some.filter((each) => each.usable()))?.usable()
    const prompt = (some: ManagedConnection[]) =>
      usable(some.filter((each) => each.usable()?.isLate === false))
    const opening = leastBusy(own)
    const connection = await opening?.openedSoon() ?? prompt(own) ?? prompt(this.#all)
    if (connection !== undefined) return connection
    try {
      return await (opening ?? own[0] as ManagedConnection).opened()
    } catch (error) {
      // If the server responds, an unresponsive connection may only be slow.
      const slow = error instanceof pg.DatabaseError && this.#all.find((each) => each.open())?.open()
      const last = usable(own) ?? usable(this.#all) ?? slow
      if (last) return last
      throw error
    }
  }

  /** If the connection becomes unresponsive, repeats the statement. The first success counts. */
  runHedged (own: ManagedConnection[], statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    const hedge = () => resolve(Promise.any([first, this.run(own, statement, values)])
      .catch(({ errors: [error] }) => { throw error }))
    const first = this.run(own, statement, values, (connection) => { this.#hedges.set(hedge, connection) })
    first.then(resolve, reject).finally(() => this.#hedges.delete(hedge))
    return promise
  }

  /** Call this every `checkMs`. Replaces connections that have become unresponsive. */
  check (): void {
    for (const managed of this.#all.filter((each) => each.open()?.check())) {
      connectionEvents.publish({ event: 'timed_out' })
      const unresponsive = managed.open()
      // Do not wait for a statement: the new connection may find another server.
      void managed.openedSoon()
      for (const [hedge, connection] of this.#hedges) {
        if (connection === unresponsive && this.#hedges.delete(hedge)) hedge()
      }
    }
  }

  /** Waits for the statements that run. Rejects later statements. */
  async close (): Promise<void> {
    this.#closing = Promise.withResolvers()
    if (this.#running > 0) await this.#closing.promise
    await Promise.all(this.#all.map((each) => each.close()))
  }
}

/** Returns undefined if no connection is usable or may be so soon. */
const leastBusy = (connections: ManagedConnection[]): ManagedConnection | undefined =>
  connections.filter((each) => each.isPromising()).toSorted((one, other) => costOf(one) - costOf(other))[0]

/** Of two connections without a statement, the open one costs less. A late one may wait for a lock. */
const costOf = (connection: ManagedConnection) =>
  connection.pending() + (connection.usable() ? 0 : 0.5) + (connection.usable()?.isLate ? 1e6 : 0)
