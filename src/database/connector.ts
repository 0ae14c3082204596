// Connects to the server that accepts writes. A connection string names one server or several.
import { setTimeout as delay } from 'node:timers/promises'
import type pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { createClient } from './client.ts'
import {
  commandConnectTimeoutMs, connectTimeoutMs, parseConnectionString, type Server, type Target
} from './connection-string.ts'
import { Connection, type SessionOptions } from './connection.ts'
import { UnfitServer } from './pg-errors.ts'
import { identityColumns, Systems } from './systems.ts'

export interface ConnectionOptions extends SessionOptions {
  url: string
  /** How long to wait for a connection. The default is for requests. */
  maxConnectMs?: number
}

/** When a server is unfit, by `target_session_attrs`. `read-write`: if it is a standby or read-only. */
const unfitWhen: Record<Target, string> = {
  'read-write': "current_setting('transaction_read_only')::bool",
  primary: 'pg_is_in_recovery()',
  any: 'false'
}

/** The pause before all servers are tried again. */
const retryMs = 500

export function createConnector (options: ConnectionOptions) {
  const { maxConnectMs = connectTimeoutMs } = options
  const { servers, target } = parseConnectionString(options.url)
  const hasTimelines = servers.length > 1 && target !== 'any'
  // Allow only index scans. A prepared statement keeps its plan until PostgreSQL analyzes the table. A plan
  // for a small table would read the whole table, even after thousands of rows were added.
  // With the last column, PostgreSQL soon notices a closed connection, and does not run statements that
  // it has already received. Only servers on Linux can do so.
  // If $1 is not the id of the process, a pooler may run the next statement in another session, so change no
  // setting. docs/scaling.md gives these settings to the role.
  const session = {
    name: 'session',
    text: `select ${unfitWhen[target]}, exists (select from pg_extension where extname = 'citus'),
      ${hasTimelines ? identityColumns : "'', ''"},
      case when pg_backend_pid() = $1 then
        set_config('enable_seqscan', 'off', false) || set_config('enable_bitmapscan', 'off', false) end,
      case when pg_backend_pid() = $1 and version() like '%linux%' then
        set_config('client_connection_check_interval', '500', false) end`
  }
  const systems = new Systems()
  let isCitus = true

  async function open (connection: Connection): Promise<void> {
    const processId = await connection.connect()
    const [row] = await connection.run(session, [processId])
    const [isUnfit, hasCitus, system, timeline] = row as [string, string, string, string]
    if (isUnfit === 't') throw new UnfitServer('the server takes no writes')
    isCitus = hasCitus === 't'
    systems.add(connection, { system, timeline, isCitus })
    if (!connection.isOpen) throw new UnfitServer('another server has taken over from this one')
  }

  /** Connects within `maxConnectMs`. Closes connections to servers with an older timeline. */
  async function connect (): Promise<Connection> {
    const opened: Connection[] = []
    const attempts: Array<Promise<Connection>> = []
    /** The last error of each server. */
    const errors = new Map<Server, unknown>()
    const expired = delay(maxConnectMs, undefined, { ref: false }).then(() => {
      throw new Error(`no connection within ${maxConnectMs} ms`)
    })
    expired.catch(() => {})

    async function attempt (server: Server): Promise<Connection> {
      const connection = new Connection(server, options)
      try {
        await Promise.race([open(connection), expired])
        opened.push(connection)
        return connection
      } catch (error) {
        connection.destroy()
        errors.set(server, error)
        throw error
      }
    }

    try {
      for (let round = 0; opened.length === 0 && round < connectTimeoutMs / retryMs; round++) {
        attempts.push(...servers.map(attempt))
        await Promise.race([Promise.any(attempts), delay(retryMs, undefined, { ref: false })])
      }
      await Promise.any(attempts)
    } catch {
      const [first, ...others] = errors.values()
      throw others.length === 0 ? first : new AggregateError([first, ...others], 'no server takes writes')
    }
    // Another server may have a later timeline. The first choice waits for all attempts: instances that start
    // together must choose the same system, by the order in DATABASE_URL.
    const grace = delay(systems.hasChosen ? 200 : connectTimeoutMs, undefined, { ref: false })
    if (servers.length > 1) await Promise.race([Promise.allSettled(attempts), grace])
    opened.sort((one, other) => servers.indexOf(one.server) - servers.indexOf(other.server))
    let best: Connection | undefined
    try {
      best = systems.choose(opened, [...errors.values()])
      return best
    } finally {
      // The other attempts continue: one may find a later timeline.
      for (const late of attempts) late.then((other) => { if (other !== best) other.close() }, () => {})
    }
  }

  /** `isDistributed`: whether the server has Citus. True until the first connection is open. */
  return { connect, isDistributed: () => isCitus }
}

/** Opens a separate connection for a command or a migration. Rejects with DATABASE_UNAVAILABLE on failure. */
export async function openClient (url: string, options: pg.ClientConfig): Promise<pg.Client> {
  let client: pg.Client | undefined
  try {
    let [server, second] = parseConnectionString(url).servers as [Server, Server?]
    if (second !== undefined) {
      const options = { url, statementTimeoutMs: 0, maxConnectMs: commandConnectTimeoutMs }
      const connection = await createConnector(options).connect()
      connection.close()
      server = connection.server
    }
    client = createClient(server, { connectionTimeoutMillis: commandConnectTimeoutMs, ...options })
    // An unhandled 'error' event would crash the process.
    client.on('error', () => {})
    return await client.connect()
  } catch (cause) {
    // After an error of its own, pg leaves the connection open.
    client?.connection.stream.destroy()
    throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
  }
}
