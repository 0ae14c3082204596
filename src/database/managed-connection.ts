// Keeps one database connection open. Replaces the connection when it is lost or unresponsive.
import { connectionEvents } from '../events.ts'
import type { Connection } from './connection.ts'

/** The limit includes closing connections. Otherwise slow closes could use up the server's connections. */
const maxOpen = 3
/** Most attempts to connect take some 20 ms. After this time, an attempt is slow. */
const slowMs = 200

export class ManagedConnection {
  readonly #connect: () => Promise<Connection>
  /** The latest connection. An unresponsive one stays open until another one replaces it. */
  #current: Connection | undefined
  #attempt: Promise<Connection> | undefined
  /** Resolves when the latest attempt has ended or is slow. */
  #soon: Promise<unknown> = Promise.resolve()
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

  /** Opens a connection unless one is usable. */
  async opened (): Promise<Connection> {
    const ready = this.usable() ?? this.#attempt
    if (ready !== undefined) return ready
    if (performance.now() < this.#retryAt) throw this.#lastError
    if (this.#connections.size >= maxOpen) throw new Error(`${maxOpen} earlier connections are still closing`)
    this.#attempt = this.#replace().finally(() => { this.#attempt = undefined })
    const slow = new Promise((resolve) => { setTimeout(resolve, slowMs).unref() })
    this.#soon = Promise.race([this.#attempt, slow]).catch(() => {})
    return this.#attempt
  }

  /** Like `opened`, but resolves to undefined if the attempt fails or is slow. */
  async openedSoon (): Promise<Connection | undefined> {
    this.opened().catch(() => {})
    await this.#soon
    return this.usable()
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
    }
  }

  /** Waits for statements that were sent. Opens no more connections. */
  async close (): Promise<void> {
    this.#retryAt = Infinity
    await this.#attempt?.catch(() => {})
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
