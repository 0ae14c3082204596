// Decides which servers of DATABASE_URL are used: servers of one system, with the newest timeline.
import { systemEvents } from '../events.ts'
import { connectTimeoutMs } from './connection-string.ts'
import type { Connection } from './connection.ts'
import { hasResponded, UnfitServer } from './pg-errors.ts'

export interface Identity {
  /** Servers that were rebuilt, by pg_upgrade or from a dump, are a new system. Its timelines begin at 1. */
  system: string
  /** Each promotion starts a new one. If two servers accept writes, the primary has the later timeline. */
  timeline: string
  /** The nodes of Citus are several systems with the same tables. */
  isCitus: boolean
}

/** Selects the system and the timeline of a server. */
export const identityColumns = `(select system_identifier from pg_control_system()),
  case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end`

export class Systems {
  /** The open connections. */
  readonly #connections = new Map<Connection, Identity>()
  readonly #newestTimelines = new Map<string, string>()
  /** The only system in use. Another system may have other rows. */
  #current: string | undefined
  /** Since when only servers of other systems respond. */
  #unresponsiveSince = Infinity
  readonly #ignored = new Set<string>()

  get hasChosen (): boolean {
    return this.#current !== undefined
  }

  /** Closes connections to servers with an older timeline, perhaps the new connection. */
  add (connection: Connection, identity: Identity): void {
    this.#connections.set(connection, identity)
    void connection.closed.then(() => this.#connections.delete(connection))
    const newest = this.#newestTimelines
    const { system, timeline } = identity
    if (timeline > (newest.get(system) ?? '')) newest.set(system, timeline)
    for (const [other, { system, timeline }] of this.#connections) {
      if (timeline < (newest.get(system) ?? '')) other.close()
    }
  }

  /**
   * Returns the first connection that may be used. `errors`: why other servers are not among `added`.
   * Changes to another system, and ends all connections to the old one, if no server of the old one responds.
   */
  choose (added: Connection[], errors: unknown[]): Connection {
    const open = added.filter(({ isOpen }) => isOpen)
    const [first] = open
    if (first === undefined) throw new UnfitServer('another server has taken over')
    this.#current ??= this.#connections.get(first)?.system
    for (const { server: { name } } of open.filter((each) => !this.#isInUse(each))) {
      if (!this.#ignored.has(name)) systemEvents.publish({ event: 'ignored', server: name })
      this.#ignored.add(name)
    }
    const chosen = open.find((each) => this.#isInUse(each))
    if (chosen !== undefined) {
      this.#unresponsiveSince = Infinity
      return chosen
    }
    const old = [...this.#connections.keys()].filter((each) => this.#isInUse(each))
    const areUnresponsive = !errors.some(hasResponded) && old.every(({ isUnresponsive }) => isUnresponsive)
    this.#unresponsiveSince = areUnresponsive
      ? Math.min(this.#unresponsiveSince, performance.now())
      : Infinity
    // Most servers that restart are back earlier.
    if (performance.now() - this.#unresponsiveSince < connectTimeoutMs) {
      const reason = 'the server belongs to another database system than the servers in use'
      throw new AggregateError(errors, reason)
    }
    systemEvents.publish({ event: 'changed', server: first.server.name })
    for (const connection of old) connection.destroy()
    this.#current = this.#connections.get(first)?.system
    this.#ignored.clear()
    return first
  }

  #isInUse (connection: Connection): boolean {
    const identity = this.#connections.get(connection)
    return identity?.isCitus || identity?.system === this.#current
  }
}
