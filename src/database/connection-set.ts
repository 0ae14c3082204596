// Chooses an open connection for each statement.
import pg from 'pg'
import { connectionEvents, requestContext, statementEvents, type StatementEvent } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import type { ManagedConnection } from './managed-connection.ts'
import { toDatabaseError } from './pg-errors.ts'

/** Called right before the statement is sent. */
type OnSend = (connection: Connection) => void

/** Each kind of statement has connections of its own. */
export class ConnectionSet<Kind extends string> {
  readonly #kinds: Record<Kind, ManagedConnection[]>
  readonly #all: ManagedConnection[]
  /** How many statements wait for a connection or a result. */
  readonly pending: Record<Kind, number>
  /** The functions that repeat hedged statements, with the connections that run the statements. */
  readonly #hedges = new Map<() => void, Connection>()
  #closing: PromiseWithResolvers<void> | undefined

  constructor (kinds: Record<Kind, ManagedConnection[]>) {
    this.#kinds = kinds
    this.#all = Object.values<ManagedConnection[]>(kinds).flat()
    this.pending = Object.fromEntries(Object.keys(kinds).map((kind) => [kind, 0])) as Record<Kind, number>
  }

  /** While no connection of the kind responds, any other connection runs the statement. */
  run (kind: Kind, statement: Statement, values: unknown[] = [], onSend?: OnSend): Promise<Row[]> {
    this.pending[kind]++
    return this.#run(this.#kinds[kind], statement, values, onSend).finally(() => {
      this.pending[kind]--
      if (this.#isIdle()) this.#closing?.resolve()
    })
  }

  async #run (own: ManagedConnection[], statement: Statement, values: unknown[], onSend?: OnSend) {
    const event: StatementEvent =
      { name: statement.name, startedAt: performance.now(), requestContext: requestContext.getStore() }
    try {
      if (this.#closing !== undefined) throw new Error('the service has closed the database')
      const first = prompt(own)
      // If all are busy, open one more for later statements.
      if (first?.pending !== 0) void own.find(isDown)?.openedSoon()
      // Do not always await: the next statement must see that this connection is busy.
      const connection = first ?? await this.#wait(own)
      onSend?.(connection)
      const rows = await connection.run(statement, values)
      statementEvents.publish(event)
      return rows
    } catch (error) {
      statementEvents.publish({ ...event, error })
      throw toDatabaseError(error)
    }
  }

  /** Waits for a new connection, but only for a moment if another connection responds. */
  async #wait (own: ManagedConnection[]): Promise<Connection> {
    const down = own.find(isDown)
    const found = await down?.openedSoon() ?? prompt(own) ?? prompt(this.#all)
    if (found !== undefined) return found
    if (down === undefined) return usable(own) as Connection
    return down.opened().catch((error) => {
      // If the server responds, an unresponsive connection may only be slow.
      const slow = error instanceof pg.DatabaseError && leastBusy(this.#all.map((each) => each.open()))
      const last = usable(own) ?? usable(this.#all) ?? slow
      if (last) return last
      throw error
    })
  }

  /** If the connection becomes unresponsive, repeats the statement. The first success counts. */
  runHedged (kind: Kind, statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    const hedge = () => resolve(Promise.any([first, this.run(kind, statement, values)])
      .catch(({ errors: [error] }) => { throw error }))
    const first = this.run(kind, statement, values, (connection) => { this.#hedges.set(hedge, connection) })
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
    if (!this.#isIdle()) await this.#closing.promise
    await Promise.all(this.#all.map((each) => each.close()))
  }

  /** Ends all connections at once. Pending statements reject with `reason` as cause. */
  destroy (reason: Error): void {
    for (const managed of this.#all) managed.destroy(reason)
  }

  #isIdle (): boolean {
    return Object.values(this.pending).every((count) => count === 0)
  }
}

const isDown = (managed: ManagedConnection) => managed.usable() === undefined

/** A late connection comes last, because it may wait for a lock. */
const leastBusy = (connections: Array<Connection | undefined>): Connection | undefined =>
  connections.reduce((best, one) => {
    if (best === undefined) return one
    return one !== undefined && isLessBusy(one, best) ? one : best
  }, undefined)

const isLessBusy = (one: Connection, other: Connection): boolean =>
  one.isLate === other.isLate ? one.pending < other.pending : other.isLate

const usable = (some: ManagedConnection[]) => leastBusy(some.map((each) => each.usable()))

function prompt (some: ManagedConnection[]): Connection | undefined {
  const connection = usable(some)
  return connection?.isLate ? undefined : connection
}
