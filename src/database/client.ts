// pg's client with a deadline for connecting, and with a safe way to give up a connection.
import { Socket } from 'node:net'
import pg from 'pg'
import type { Server } from './connection-string.ts'

/** How long requests, and commands, wait for a connection. */
export const [connectTimeoutMs, commandConnectTimeoutMs] = [3000, 10_000]

export class Client extends pg.Client {
  /** The process id of the session. A pooler invents one. @types/pg lacks this property. */
  declare readonly processID: number
  /** Identifies the session. Undefined behind a pooler, and before `Servers.startSession`. */
  session: string | undefined
  /** A time of `performance.now()`. */
  readonly startedAt = performance.now()
  readonly #socket: Socket
  readonly #deadline: NodeJS.Timeout

  /** Within `timeoutMs`, the connection must open, and `endDeadline` be called. Options of `server` win. */
  constructor (server: Server, timeoutMs: number, options: pg.ClientConfig) {
    const socket = new Socket()
    // If the network drops the packets of an idle connection, the connection ends after some 20 s.
    const keepAlive = { keepAlive: true, keepAliveInitialDelayMillis: 10_000 }
    const { connectionTimeoutMillis: ownMs = Infinity, ...fields } = server.fields()
    super({ ...keepAlive, ...options, ...fields, stream: () => socket })
    this.#socket = socket
    const ms = Math.min(timeoutMs, ownMs)
    const error = new Error(`no connection within ${ms} ms`)
    this.#deadline = setTimeout(() => socket.destroy(error), ms)
    // An unhandled 'error' event would crash the process. Pending queries are rejected separately.
    this.on('error', () => {})
    // After an error of its own, such as a missing password, pg would leave the connection open.
    this.connection.on('error', () => this.reset())
    this.once('end', () => this.endDeadline())
  }

  endDeadline (): void {
    clearTimeout(this.#deadline)
  }

  /**
   * Gives up the connection: discards what the server has not received yet, and rejects the statement in
   * flight. After an orderly close, the kernel would go on sending, and the server would run the statement
   * later.
   */
  reset (): void {
    // A Unix socket knows no reset, and has no network that could delay a statement.
    if (this.host.startsWith('/')) this.#socket.destroy()
    else this.#socket.resetAndDestroy()
  }
}
