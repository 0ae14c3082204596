// Connects to the server that accepts writes. A connection string names one server or several.
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { systemEvents } from '../events.ts'
import { connectTimeoutMs, parseConnectionString, type Server, type Target } from './connection-string.ts'
import { Connection, createClient, type SessionOptions } from './connection.ts'

export interface ConnectionOptions extends SessionOptions { url: string }

/** When a server is unfit, by `target_session_attrs`. `read-write`: if it is a standby or read-only. */
const unfitWhen: Record<Target, string> = {
  'read-write': "current_setting('transaction_read_only')::bool",
  primary: 'pg_is_in_recovery()',
  any: 'false'
}

/** The pause before all servers are tried again. */
const retryMs = 500

// Each promotion starts a new timeline. If two servers accept writes, the primary has the later timeline.
// Servers that were rebuilt, by pg_upgrade or from a dump, are a new system. Its timelines begin at 1.
const [systemOf, timelineOf] = ['(select system_identifier from pg_control_system())',
  "case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end"]

/** This server does not fit, but it responds. */
class UnfitServer extends Error {}
class OtherSystem extends Error {}

export function createConnector (options: ConnectionOptions) {
  const { servers, target } = parseConnectionString(options.url)
  const hasTimelines = servers.length > 1 && target !== 'any'
  // Allow only index scans. A prepared statement keeps its plan until PostgreSQL analyzes the table. A plan
  // for a small table would read the whole table, even after thousands of plants were added.
  // With the last column, PostgreSQL soon notices a closed connection, and does not run statements that
  // it has already received. Only servers on Linux can do so.
  // If $1 is not the id of the process, a pooler may run the next statement in another session, so change no
  // setting. docs/scaling.md gives these settings to the role.
  const session = {
    name: 'session',
    text: `select ${unfitWhen[target]}, exists (select from pg_extension where extname = 'citus'),
      ${hasTimelines ? `${systemOf}, ${timelineOf}` : "'', ''"},
      case when pg_backend_pid() = $1 then
        set_config('enable_seqscan', 'off', false) || set_config('enable_bitmapscan', 'off', false) end,
      case when pg_backend_pid() = $1 and version() like '%linux%' then
        set_config('client_connection_check_interval', '500', false) end`
  }
  /** The open connections. */
  const members = new Map<Connection, { system: string, timeline: string }>()
  /** The newest timeline of each system. */
  const newest = new Map<string, string>()
  const newestOf = (system: string) => newest.get(system) ?? ''
  /** The only system in use. Statements never go to two systems: they may have different plants. */
  let current: string | undefined
  /** Since when no server of this system responds. */
  let silentSince: number | undefined
  const ignored = new Set<string>()
  let isCitus = true

  /** The nodes of Citus are different systems with the same plants. */
  const isOther = (system: string) => current !== undefined && system !== current && !isCitus

  /** Resolves to the system of the server. */
  async function open (connection: Connection): Promise<string> {
    const processId = await connection.connect()
    const [row] = await connection.run(session, [processId])
    const [isUnfit, hasCitus, system, timeline] = row as [string, string, string, string]
    isCitus = hasCitus === 't'
    if (isOther(system)) throw ignore(connection.server)
    if (isUnfit === 't') throw new UnfitServer('the server takes no writes')
    members.set(connection, { system, timeline })
    void connection.closed.then(() => members.delete(connection))
    if (timeline > newestOf(system)) newest.set(system, timeline)
    for (const [other, { system, timeline }] of members) if (timeline < newestOf(system)) other.close()
    if (!connection.isOpen) throw new UnfitServer('another server has taken over from this one')
    silentSince = undefined
    return system
  }

  function ignore ({ name }: Server): OtherSystem {
    if (!ignored.has(name)) systemEvents.publish({ event: 'ignored', servers: [name] })
    ignored.add(name)
    return new OtherSystem('the server belongs to another database system than the servers in use')
  }

  /** Call this after all attempts to connect have failed. Returns whether any system may be used now. */
  function abandonSystem (causes: unknown[]): boolean {
    const hasResponded = causes.some((cause) => cause instanceof UnfitServer || cause instanceof pg.DatabaseError)
    const isConnected = members.keys().some(({ isOpen, isUnresponsive }) => isOpen && !isUnresponsive)
    const isSilent = !hasResponded && !isConnected && causes.some((cause) => cause instanceof OtherSystem)
    silentSince = isSilent ? silentSince ?? performance.now() : undefined
    if (silentSince === undefined || performance.now() - silentSince < connectTimeoutMs) return false
    systemEvents.publish({ event: 'changed', servers: [...ignored] })
    for (const member of members.keys()) member.destroy()
    ignored.clear()
    current = silentSince = undefined
    return true
  }

  /** Connects within 3 s. Closes connections to servers with an older timeline. */
  async function connect (): Promise<Connection> {
    const opened: Array<{ connection: Connection, system: string }> = []
    const attempts: Array<Promise<Connection>> = []
    const expired = delay(connectTimeoutMs, undefined, { ref: false }).then(() => {
      throw new Error(`no connection within ${connectTimeoutMs} ms`)
    })
    expired.catch(() => {})

    async function attempt (server: Server): Promise<Connection> {
      const connection = new Connection(server, options)
      try {
        opened.push({ connection, system: await Promise.race([open(connection), expired]) })
        return connection
      } catch (error) {
        connection.destroy()
        throw error
      }
    }

    try {
      for (let round = 0; opened.length === 0 && round < connectTimeoutMs / retryMs; round++) {
        attempts.push(...servers.map(attempt))
        await Promise.race([Promise.any(attempts), delay(retryMs, undefined, { ref: false })])
      }
      await Promise.any(attempts)
    } catch (error) {
      const causes = (error as AggregateError).errors.slice(-servers.length)
      if (abandonSystem(causes)) return connect()
      throw servers.length === 1 ? causes[0] : new AggregateError(causes, 'no server takes writes')
    }
    // Another server may have a later timeline.
    const grace = delay(200, undefined, { ref: false })
    if (servers.length > 1) await Promise.race([Promise.allSettled(attempts), grace])
    // The order of DATABASE_URL decides, so that instances that start together use the same system.
    opened.sort((one, other) => servers.indexOf(one.connection.server) - servers.indexOf(other.connection.server))
    current ??= opened[0]?.system
    for (const { connection, system } of opened) if (isOther(system)) ignore(connection.server)
    const best = opened.find(({ connection, system }) => connection.isOpen && !isOther(system))?.connection
    // The other attempts continue: one may find a later timeline.
    for (const late of attempts) late.then((other) => { if (other !== best) other.close() }, () => {})
    if (best === undefined) throw new UnfitServer('another server has taken over')
    return best
  }

  /** `isDistributed`: whether the server has Citus. True until the first connection is open. */
  return { connect, isDistributed: () => isCitus }
}

/** Opens a separate connection for a command or a migration. Rejects with DATABASE_UNAVAILABLE on failure. */
export async function openClient (url: string, options: pg.ClientConfig): Promise<pg.Client> {
  try {
    let [server, second] = parseConnectionString(url).servers as [Server, Server?]
    if (second !== undefined) {
      const connection = await createConnector({ url, statementTimeoutMs: 0 }).connect()
      connection.close()
      server = connection.server
    }
    const client = createClient(server, options)
    // An unhandled 'error' event would crash the process.
    client.on('error', () => {})
    return await client.connect()
  } catch (cause) {
    throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
  }
}
