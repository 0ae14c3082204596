// Waits until the server has ended sessions that the service has given up. A session that waits for a standby
// or for the disk does not notice that its client is gone.
import { setTimeout as delay } from 'node:timers/promises'
import type { Client } from './client.ts'

const pauseMs = 250

// If the network dropped all packets, the server does not know that the client is gone. So this statement
// ends idle sessions. Never end an active session: its commit may wait for a standby, and would become
// visible without this standby.
const selectLeft = `select session, case when state = 'idle' then pg_terminate_backend(pid) end
  from (select pid || ' ' || backend_start as session, * from pg_stat_activity) as activity
  where session = any ($1)`

export class GivenUpSessions {
  readonly #connect: () => Promise<Client>
  /** Maps each session to the function that reports its end. */
  readonly #sessions = new Map<string, () => void>()
  #isPolling = false
  #isClosed = false

  /** `connect` opens a connection of its own: the connections of the pools may all be given up. */
  constructor (connect: () => Promise<Client>) {
    this.#connect = connect
  }

  /**
   * Calls `onEnd` when the server no longer has the session. Behind a pooler, sessions cannot be told apart:
   * then `session` is undefined, and the call follows at once.
   */
  add (session: string | undefined, onEnd: () => void): void {
    if (session === undefined || this.#isClosed) return onEnd()
    this.#sessions.set(session, onEnd)
    if (!this.#isPolling) void this.#poll()
  }

  /** Waits no longer. */
  close (): void {
    this.#isClosed = true
    for (const onEnd of this.#sessions.values()) onEnd()
    this.#sessions.clear()
  }

  async #poll (): Promise<void> {
    this.#isPolling = true
    while (this.#sessions.size > 0) {
      // A server that does not respond tells nothing about its sessions: ask again.
      await this.#removeEnded().catch(() => {})
      await delay(pauseMs, undefined, { ref: false })
    }
    this.#isPolling = false
  }

  async #removeEnded (): Promise<void> {
    const client = await this.#connect()
    try {
      const { rows } = await client.query(selectLeft, [[...this.#sessions.keys()]])
      const left = new Set(rows.map(({ session }) => session))
      for (const [session, onEnd] of this.#sessions) {
        if (left.has(session)) continue
        this.#sessions.delete(session)
        onEnd()
      }
    } finally {
      client.end().catch(() => {})
    }
  }
}
