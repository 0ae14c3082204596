// Chooses an open connection for each statement.
import { requestContext, statementEvents } from '../events.ts'
import type { Connection, Row, Statement } from './connection.ts'
import type { ManagedConnection } from './managed-connection.ts'
import { isFull, toConnectError, toDatabaseError } from './pg-errors.ts'

/** Each kind of statement has connections of its own. */
export class ConnectionSet<Kind extends string> {
  readonly #kinds: Record<Kind, ManagedConnection[]>
  readonly #all: ManagedConnection[]
  /** How many statements wait for a connection or a result. */
  readonly pending: Record<Kind, number>

  constructor (kinds: Record<Kind, ManagedConnection[]>) {
    this.#kinds = kinds
    this.#all = Object.values<ManagedConnection[]>(kinds).flat()
    this.pending = Object.fromEntries(Object.keys(kinds).map((kind) => [kind, 0])) as Record<Kind, number>
  }

  /** While no connection of the kind responds, any other connection runs the statement. */
  async run (
    kind: Kind, statement: Statement, values: unknown[] = [], onUnresponsive?: () => void
  ): Promise<Row[]> {
    const startedAt = performance.now()
    this.pending[kind]++
    try {
      // Do not always await: the next statement must see that this connection is busy.
      const connection = this.#choose(kind) ?? await this.#wait(kind)
      const rows = await connection.run(statement, values, onUnresponsive)
      this.#end(kind, statement.name, startedAt)
      return rows
    } catch (error) {
      this.#end(kind, statement.name, startedAt, error)
      throw toDatabaseError(error)
    }
  }

  #end (kind: Kind, name: string, startedAt: number, error?: unknown): void {
    this.pending[kind]--
    if (!statementEvents.hasSubscribers) return
    statementEvents.publish({ name, startedAt, error, requestContext: requestContext.getStore() })
  }

  /** Returns undefined if all connections of the kind are late, and a new one may help. */
  #choose (kind: Kind): Connection | undefined {
    const own = this.#kinds[kind]
    const best = leastBusy(own)
    if (best?.pending === 0) return best
    // If all are busy, open one more for later statements.
    const down = toOpen(own)
    down?.open().catch(() => {})
    if (best?.isLate === false) return best
    return down === undefined ? promptOf(this.#all) ?? best : undefined
  }

  /** Waits for a new connection, but only for a moment if a connection of another kind responds. */
  async #wait (kind: Kind): Promise<Connection> {
    const own = this.#kinds[kind]
    const down = toOpen(own) as ManagedConnection
    await down.openSoon()
    const prompt = promptOf(own) ?? promptOf(this.#all)
    if (prompt !== undefined) return prompt
    const error = await down.open().then(() => new Error('the new connection is lost'), (error) => error)
    const best = leastBusy(own)
    const connection = best?.isUnresponsive === false ? best : leastBusy(this.#all)
    const isUsable = connection?.isUnresponsive === false || isFull(error)
    if (connection !== undefined && isUsable) return connection
    throw toConnectError(error)
  }

  /** If the connection becomes unresponsive, repeats the statement. The first success counts. */
  async runHedged (kind: Kind, statement: Statement, values: unknown[] = []): Promise<Row[]> {
    const unresponsive = Promise.withResolvers<undefined>()
    const first = this.run(kind, statement, values, () => unresponsive.resolve(undefined))
    const rows = await Promise.race([first, unresponsive.promise])
    if (rows !== undefined) return rows
    return Promise.any([first, this.run(kind, statement, values)])
      .catch(({ errors: [error] }) => { throw error })
  }

  /** Opens a connection of each kind, so that the first statements need not wait. Failures do not matter. */
  async open (): Promise<void> {
    await Promise.allSettled(Object.values<ManagedConnection[]>(this.#kinds).map(([first]) => first?.open()))
  }

  /** Waits for the statements that were sent. Rejects later statements. */
  async close (): Promise<void> {
    await Promise.all(this.#all.map((each) => each.close()))
  }

  /** Ends all connections at once. Pending statements reject with `reason` as cause. */
  destroy (reason: Error): void {
    for (const managed of this.#all) managed.destroy(reason)
  }
}

const toOpen = (some: ManagedConnection[]) =>
  some.find(({ mayOpen }) => mayOpen) ?? some.find(({ isDown }) => isDown)

/** Late connections come last because they may wait for a lock, and unresponsive ones after them. */
const delayOf = ({ isLate, isUnresponsive }: Connection) => Number(isLate) + Number(isUnresponsive)

function leastBusy (some: ManagedConnection[]): Connection | undefined {
  let best: Connection | undefined
  for (const { current } of some) {
    if (current === undefined) continue
    if (best === undefined || (delayOf(current) - delayOf(best) || current.pending - best.pending) < 0) {
      best = current
    }
  }
  return best
}

function promptOf (some: ManagedConnection[]): Connection | undefined {
  const connection = leastBusy(some)
  return connection?.isLate ? undefined : connection
}
