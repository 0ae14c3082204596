// Keeps one database connection open. Replaces the connection when it is lost or unresponsive.
import { connectionEvents } from '../events.ts'
import type { Connection } from './connection.ts'
import { TooManyConnections } from './pg-errors.ts'

/** The limit includes closing connections. Otherwise slow closes could use up the server's connections. */
const maxOpen = 3
/** Most attempts to connect take some 20 ms. After this time, an attempt is slow. */
const slowMs = 200

export class ManagedConnection {
  readonly #connect: () => Promise<Connection>
  /** The latest connection. An unresponsive one stays open until another one replaces it. */
  #current: Connection | undefined
  #attempt: Promise<void> | undefined
  /** Resolves when the latest attempt has ended or is slow. */
  #soon: Promise<unknown> = Promise.resolve()
  #lastError: unknown
  #retryAt = 0
  /** All connections that have not ended. */
  readonly #connections = new Set<Connection>()

  constructor (connect: () => Promise<Connection>) {
    this.#connect = connect
  }

  /** The open connection, even if it is unresponsive. */
  get current (): Connection | undefined {
    return this.#current?.isOpen ? this.#current : undefined
  }

  /** Whether a connection is needed: none is open, or the open one is unresponsive. */
  get isDown (): boolean {
    return this.current?.isUnresponsive ?? true
  }

  /** Whether `open` waits for an attempt, and does not reject at once. */
  get mayOpen (): boolean {
    const mayStart = performance.now() >= this.#retryAt && this.#connections.size < maxOpen
    return this.isDown && (mayStart || this.#attempt !== undefined)
  }

  /** Opens a connection if `isDown`. Concurrent calls share an attempt. */
  async open (): Promise<void> {
    if (!this.isDown || this.#attempt !== undefined) return this.#attempt
    if (performance.now() < this.#retryAt) throw this.#lastError
    if (this.#connections.size >= maxOpen) {
      throw new TooManyConnections(`${maxOpen} earlier connections have not ended`)
    }
    this.#attempt = this.#replace().finally(() => { this.#attempt = undefined })
    const slow = new Promise((resolve) => { setTimeout(resolve, slowMs).unref() })
    this.#soon = Promise.race([this.#attempt, slow]).catch(() => {})
    return this.#attempt
  }

  /** Like `open`, but does not wait for a slow attempt, and never rejects. */
  async openSoon (): Promise<void> {
    this.open().catch(() => {})
    await this.#soon
  }

  async #replace (): Promise<void> {
    try {
      const connection = await this.#connect()
      this.#connections.add(connection)
      void connection.closed.then(() => {
        this.#connections.delete(connection)
        if (connection === this.#current) connectionEvents.publish({ event: 'lost' })
      })
      connection.onUnresponsive = () => {
        connectionEvents.publish({ event: 'timed_out' })
        // Do not wait for a statement: the new connection may find another server.
        this.open().catch(() => {})
      }
      connectionEvents.publish({ event: 'opened' })
      this.#current?.close()
      this.#current = connection
    } catch (error) {
      connectionEvents.publish({ event: 'failed', error })
      this.#lastError = error
      // Reject statements for 100 ms. Otherwise each statement would start a new attempt to connect.
      this.#retryAt = Math.max(this.#retryAt, performance.now() + 100)
      throw error
    }
  }

  /** Waits for statements that were sent. Opens no more connections. */
  async close (): Promise<void> {
    this.#retryAt = Infinity
    this.#lastError = new Error('the service has closed the database')
    await this.#attempt?.catch(() => {})
    const last = this.#current
    this.#current = undefined
    last?.close()
    await last?.closed
  }

  /** Ends all connections at once. Pending statements reject with `reason`. */
  destroy (reason: Error): void {
    for (const connection of this.#connections) connection.destroy(reason)
  }
}
