// Keeps one database connection open. Replaces the connection when it is lost or unresponsive.
import { connectionEvents } from '../events.ts'
import type { Connection } from './connection.ts'

/** The limit includes closing connections. Otherwise slow closes could use up the server's connections. */
const maxOpen = 3
/** Most attempts to connect take some 20 ms. After this time, an attempt is slow. */
const slowMs = 200

interface Attempt {
  connection: Promise<Connection>
  /** Resolves when the attempt has ended or is slow. */
  soon: Promise<void>
  isSlow: boolean
  /** How many statements wait for the attempt. */
  waiting: number
}

export class ManagedConnection {
  readonly #connect: () => Promise<Connection>
  /** The latest connection. An unresponsive one stays open until another one replaces it. */
  #current: Connection | undefined
  #attempt: Attempt | undefined
  #lastError: unknown
  #retryAt = 0
  /** All connections that have not ended. A connection counts as lost unless this service closes it. */
  readonly #connections = new Map<Connection, 'lost' | 'closing'>()

  constructor (connect: () => Promise<Connection>) {
    this.#connect = connect
  }

  /** Returns the open connection, even if it is unresponsive. */
  open (): Connection | undefined {
    return this.#current?.isOpen ? this.#current : undefined
  }

  usable (): Connection | undefined {
    return this.#current?.isUnresponsive ? undefined : this.open()
  }

  /** Whether a call of `openedSoon` may resolve to a connection. */
  isPromising (): boolean {
    return this.usable() !== undefined || (this.#attempt ? !this.#attempt.isSlow : this.#mayConnect())
  }

  /** Returns how many statements wait for a connection or a result. Ignores closing connections. */
  pending (): number {
    return this.usable()?.pending ?? this.#attempt?.waiting ?? 0
  }

  /** Opens a connection unless one is usable. Resolves to undefined if this is slow or fails. */
  async openedSoon (): Promise<Connection | undefined> {
    if (this.usable() === undefined && this.isPromising()) await this.#waitFor(({ soon }) => soon)
    return this.usable()
  }

  /** Opens a connection unless one is usable. */
  async opened (): Promise<Connection> {
    const usable = this.usable()
    if (usable !== undefined) return usable
    if (this.#attempt || this.#mayConnect()) return this.#waitFor(({ connection }) => connection)
    if (this.#connections.size < maxOpen) throw this.#lastError
    const unresponsive = this.open()
    if (unresponsive !== undefined) return unresponsive
    throw new Error(`${maxOpen} earlier connections are still closing`)
  }

  #mayConnect (): boolean {
    return performance.now() >= this.#retryAt && this.#connections.size < maxOpen
  }

  async #waitFor<Result> (result: (attempt: Attempt) => Promise<Result>): Promise<Result> {
    const attempt = this.#attempt ??= this.#startAttempt()
    attempt.waiting++
    return result(attempt).finally(() => { attempt.waiting-- })
  }

  #startAttempt (): Attempt {
    const connection = this.#replace()
    const { promise: soon, resolve } = Promise.withResolvers<void>()
    const attempt = { connection, soon, isSlow: false, waiting: 0 }
    const end = () => {
      attempt.isSlow = true
      resolve()
    }
    connection.then(end, end)
    setTimeout(end, slowMs).unref()
    return attempt
  }

  async #replace (): Promise<Connection> {
    try {
      const connection = await this.#connect()
      this.#connections.set(connection, 'lost')
      void connection.closed.then(() => {
        if (this.#connections.get(connection) === 'lost') connectionEvents.publish({ event: 'lost' })
        this.#connections.delete(connection)
      })
      connectionEvents.publish({ event: 'opened' })
      this.#closeCurrent()
      this.#current = connection
      return connection
    } catch (error) {
      connectionEvents.publish({ event: 'failed', error })
      this.#lastError = error
      // Reject statements for 100 ms. Otherwise each statement would start a new attempt to connect.
      this.#retryAt = Math.max(this.#retryAt, performance.now() + 100)
      throw error
    } finally {
      this.#attempt = undefined
    }
  }

  /** Waits for statements that were sent. Opens no more connections. */
  async close (): Promise<void> {
    this.#retryAt = Infinity
    await this.#attempt?.connection.catch(() => {})
    this.#closeCurrent()
    await this.#current?.closed
  }

  destroy (reason: Error): void {
    for (const connection of this.#connections.keys()) connection.destroy(reason)
  }

  #closeCurrent (): void {
    if (this.#current === undefined) return
    if (this.#connections.has(this.#current)) this.#connections.set(this.#current, 'closing')
    this.#current.close()
  }
}
