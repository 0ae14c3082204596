// Decides which servers of DATABASE_URL are used: servers of one database system, with the newest timeline.
import pg from 'pg'
import { systemEvents } from '../events.ts'
import { connectTimeoutMs } from './connection-string.ts'
import type { Connection } from './connection.ts'

// Each promotion starts a new timeline. If two servers accept writes, the primary has the later timeline.
// Servers that were rebuilt, by pg_upgrade or from a dump, are a new system. Its timelines begin at 1.
/** Selects the system and the timeline of a server. */
export const identityColumns = `(select system_identifier from pg_control_system()),
  case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end`

class UnfitServer extends Error {}
class OtherSystem extends Error {}

export interface Identity {
  system: string
  timeline: string
  /** The nodes of Citus are several systems with the same plants. */
  isCitus: boolean
  takesWrites: boolean
}

export class Systems {
  /** The open connections. */
  readonly #members = new Map<Connection, Identity>()
  readonly #newestTimelines = new Map<string, string>()
  /** The only system in use. Another system may have other plants. */
  #current: string | undefined
  /** Since when no server of this system responds. */
  #silentSince = Infinity
  readonly #ignored = new Set<string>()

  /** Throws if the server must not be used. Closes connections to servers with an older timeline. */
  admit (connection: Connection, identity: Identity): Identity {
    if (this.#isOther(identity)) throw this.#ignore(connection)
    if (!identity.takesWrites) throw new UnfitServer('the server takes no writes')
    this.#silentSince = Infinity
    this.#members.set(connection, identity)
    void connection.closed.then(() => this.#members.delete(connection))
    const newest = this.#newestTimelines
    const { system, timeline } = identity
    if (timeline > (newest.get(system) ?? '')) newest.set(system, timeline)
    for (const [member, { system, timeline }] of this.#members) {
      if (timeline < (newest.get(system) ?? '')) member.close()
    }
    if (!connection.isOpen) throw new UnfitServer('another server has taken over from this one')
    return identity
  }

  /** Returns the first connection that may be used. The first call decides which system is in use. */
  choose (opened: Array<[Connection, Identity]>): Connection {
    this.#current ??= opened[0]?.[1].system
    for (const [connection, identity] of opened) if (this.#isOther(identity)) this.#ignore(connection)
    const chosen = opened.find(([{ isOpen }, identity]) => isOpen && !this.#isOther(identity))
    if (chosen === undefined) throw new UnfitServer('another server has taken over')
    return chosen[0]
  }

  /**
   * Call this with the errors of all servers when none could be used. Returns true, and ends all connections,
   * if only servers of other systems have responded for a while. Then another system may be used.
   */
  abandon (causes: unknown[]): boolean {
    const hasResponded = (cause: unknown) => cause instanceof UnfitServer || cause instanceof pg.DatabaseError
    const isSilent = causes.some((cause) => cause instanceof OtherSystem) && !causes.some(hasResponded) &&
      !this.#members.keys().some(({ isOpen, isUnresponsive }) => isOpen && !isUnresponsive)
    this.#silentSince = isSilent ? Math.min(this.#silentSince, performance.now()) : Infinity
    // Most servers that restart are back earlier.
    if (performance.now() - this.#silentSince < connectTimeoutMs) return false
    systemEvents.publish({ event: 'changed', servers: [...this.#ignored] })
    for (const member of this.#members.keys()) member.destroy()
    this.#ignored.clear()
    this.#current = undefined
    this.#silentSince = Infinity
    return true
  }

  #isOther ({ system, isCitus }: Identity): boolean {
    return this.#current !== undefined && this.#current !== system && !isCitus
  }

  #ignore ({ server: { name } }: Connection): OtherSystem {
    if (!this.#ignored.has(name)) systemEvents.publish({ event: 'ignored', servers: [name] })
    this.#ignored.add(name)
    return new OtherSystem('the server belongs to another database system than the servers in use')
  }
}
