// A lane has one connection: opened when first needed, and another when it is lost or silent.
import { connectionEvents, origin, statementEvents } from '../events.ts'
import type { Connect } from './connector.ts'
import type { Connection, Row, Statement } from './connection.ts'
import { toDatabaseError } from './pg-errors.ts'

/**
 * How many connections of a lane may be open at a time: the one in use and those that
 * are closing. Statements that hang for long shall not use up the server's connections.
 */
const maxOpen = 3

/** After a refused attempt, how long statements are rejected without trying again. */
const pauseMs = 100

export class ManagedConnection {
  readonly #connect: Connect
  #current: Connection | undefined
  #opening: Promise<Connection> | undefined
  #open = 0
  #queued = 0
  #pause: { until: number, error: unknown } = { until: -Infinity, error: undefined }
  readonly #toAskAgain = new Set<() => void>()
  /** By us: any other that ends was lost. */
  readonly #closing = new WeakSet<Connection>()

  constructor (connect: Connect) {
    this.#connect = connect
  }

  /** Rejects with DATABASE_UNAVAILABLE, or with what the server says of the statement itself. */
  async run (statement: Statement, values: unknown[]): Promise<Row[]> {
    const event = statementEvents.hasSubscribers ? beginning(statement) : undefined
    try {
      const rows = await (this.#usable() ?? await this.#openForOne()).run(statement, values)
      if (event !== undefined) statementEvents.publish(event)
      return rows
    } catch (error) {
      if (event !== undefined) statementEvents.publish({ ...event, error })
      throw toDatabaseError(error)
    }
  }

  /** Like `run`, and asked again on the next connection when this one is closed for its silence. */
  runHedged (statement: Statement, values: unknown[]): Promise<Row[]> {
    const { promise, resolve, reject } = Promise.withResolvers<Row[]>()
    const first = this.run(statement, values)
    const again = () => resolve(firstToAnswer([first, this.run(statement, values)]))
    this.#toAskAgain.add(again)
    first.then(resolve, reject).finally(() => this.#toAskAgain.delete(again))
    return promise
  }

  /**
   * How many statements wait, for an answer or for a connection. What a closing
   * one has doesn't count: it must not keep out those who come when the database is back.
   */
  waiting (): number {
    return this.#queued + (this.#usable()?.waiting() ?? 0)
  }

  /** Resolves when there is a connection. */
  async opened (): Promise<Connection> {
    return this.#usable() ?? await this.#openNext()
  }

  /**
   * To be called every `tickMs`. True when it closes a silent connection:
   * the next statement opens another.
   */
  tick (): boolean {
    const connection = this.#usable()
    connection?.tick()
    if (!connection?.isUnresponsive() || this.#open >= maxOpen) return false
    connectionEvents.publish({ event: 'timed_out' })
    this.#beginClosing(connection)
    const asked = [...this.#toAskAgain]
    this.#toAskAgain.clear()
    for (const again of asked) again()
    return true
  }

  /** Resolves when the connection is closed, after the answers to all that was sent on it. */
  async close (): Promise<void> {
    await Promise.allSettled([this.#opening])
    const connection = this.#usable()
    if (connection === undefined) return
    this.#beginClosing(connection)
    await connection.closed
  }

  #usable (): Connection | undefined {
    return this.#current?.isOpen() ? this.#current : undefined
  }

  async #openForOne (): Promise<Connection> {
    this.#queued++
    try {
      return await this.#openNext()
    } finally {
      this.#queued--
    }
  }

  #openNext (): Promise<Connection> {
    if (performance.now() < this.#pause.until) return Promise.reject(this.#pause.error)
    this.#opening ??= this.#connect().then((connection) => this.#keep(connection), (error) => {
      this.#pause = { until: performance.now() + pauseMs, error }
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

  #beginClosing (connection: Connection): void {
    this.#closing.add(connection)
    connection.close()
  }
}

const beginning = ({ name }: Statement) => ({ name, startedAt: performance.now(), origin: origin.getStore() })

/** When none has an answer: the error of the first. */
async function firstToAnswer (answers: Array<Promise<Row[]>>): Promise<Row[]> {
  try {
    return await Promise.any(answers)
  } catch (error) {
    throw (error as AggregateError).errors[0]
  }
}
