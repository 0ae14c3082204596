// Connects to the server that accepts writes. A connection string names one server or several.
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { Connection, type ConnectionOptions } from './connection.ts'

/** When a server is unfit, by `target_session_attrs`. `read-write`: if it is a standby or read-only. */
const unfitWhen = {
  'read-write': "current_setting('transaction_read_only')::bool",
  primary: 'pg_is_in_recovery()',
  any: 'false'
}
type Target = keyof typeof unfitWhen

const allowedValues: Record<string, string[]> = {
  target_session_attrs: Object.keys(unfitWhen),
  sslmode: ['disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify']
}
// The accepted parameters. pg also accepts `replication` and `binary`, which would break the service.
const allowedParameters = ['application_name', 'host', 'idle_in_transaction_session_timeout', 'lock_timeout',
  'options', 'password', 'port', 'sslcert', 'sslkey', 'sslmode', 'sslnegotiation', 'sslrootcert',
  'target_session_attrs', 'user']

export const urlForm = 'postgres://user:password@host:port/database, ' +
  'with / as %2F and ? as %3F in the password'
// Matches a password with an unescaped /, ? or #. pg would read a part of such a password as the host.
const rawPassword = /^[^:]*:\/\/[^@/?#]*:[^@/?#]*[/?#][^=]*@/
const urlParts = /^(postgres(?:ql)?:\/\/(?:[^/?#]*@)?)(?=.)([^/?#]*)([^?#]*)(.*)$/s

/** Splits `postgres://user@one:5432,two/db` into a URL per server. Errors show neither user nor password. */
export function parseServers (url: string): { urls: string[], target: Target } {
  const match = rawPassword.test(url) ? null : urlParts.exec(url)
  if (match === null) throw unexpected(urlForm, url.replace(/:\/\/.*@/s, '://…@').replace(/\?.*/s, '?…'))
  const [, before, authority = '', path, query] = match
  const parameters = new URLSearchParams(query)
  for (const [name, value] of parameters) {
    const isKnown = allowedParameters.includes(name)
    if (!isKnown) throw unexpected(`only the parameters ${allowedParameters.join(', ')}`, name)
    const allowed = allowedValues[name] ?? [value]
    if (!allowed.includes(value)) throw unexpected(`${name} to be one of ${allowed.join(', ')}`, value)
    if (name === 'host' && value.includes(',')) throw unexpected('several hosts only before the path', value)
  }
  const target = (parameters.get('target_session_attrs') ?? 'read-write') as Target
  const hosts = authority.split(',')
  for (const place of [...hosts, `:${parameters.get('port') ?? ''}`]) {
    const isPlace = URL.canParse(`postgres://${place.replace(/^(?=:|$)/, 'host')}`)
    if (!isPlace) throw unexpected('a host and a port up to 65535', place)
  }
  // pg treats these modes as `verify-full`, too, and prints a long warning about them.
  const rest = `${path}${query}`.replace(/([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/, '$1verify-full')
  return { urls: hosts.map((host) => before + host + rest), target }
}

const unexpected = (expected: string, got: string) =>
  new Error(`expected ${expected}, got ${JSON.stringify(got)}`)

export const connectTimeoutMs = 3000
/** The pause before all servers are tried again. */
const retryMs = 500

// Each promotion starts a new timeline. If two servers accept writes, the primary has the later timeline.
// Servers that were rebuilt, by pg_upgrade or from a dump, are a new system. Its timelines begin at 1.
const [systemOf, timelineOf] = ['(select system_identifier from pg_control_system())',
  "case when pg_is_in_recovery() then '' else left(pg_walfile_name(pg_current_wal_lsn()), 8) end"]

export function createConnector (options: ConnectionOptions) {
  const { urls, target } = parseServers(options.url)
  const hasTimelines = urls.length > 1 && target !== 'any'
  // Allow only index scans. A prepared statement keeps its plan until PostgreSQL analyzes the table. A plan
  // for a small table would read the whole table, even after thousands of plants were added.
  // With the last column, PostgreSQL soon notices a closed connection, and does not run statements that
  // it has already received. Only servers on Linux can do so.
  const session = {
    name: '',
    text: `select ${unfitWhen[target]}, ${hasTimelines ? `${systemOf}, ${timelineOf}` : "'', ''"},
      exists (select from pg_extension where extname = 'citus'),
      set_config('enable_seqscan', 'off', false), set_config('enable_bitmapscan', 'off', false),
      case when version() like '%linux%'
        then set_config('client_connection_check_interval', '500', false) end`
  }
  const timelines = new Map<Connection, { system: string, timeline: string }>()
  /** The newest timeline of each system. */
  const newest = new Map<string, string>()
  const newestOf = (system: string) => newest.get(system) ?? ''
  let isCitus = true

  async function open (connection: Connection): Promise<void> {
    await connection.connect()
    const [row] = await connection.run(session, [])
    const [isUnfit, system, timeline, hasCitus] = row as [string, string, string, string]
    if (isUnfit === 't') throw new Error('the server takes no writes')
    isCitus = hasCitus === 't'
    timelines.set(connection, { system, timeline })
    void connection.closed.then(() => timelines.delete(connection))
    if (timeline > newestOf(system)) newest.set(system, timeline)
    for (const [other, { system, timeline }] of timelines) if (timeline < newestOf(system)) other.close()
    if (!connection.isOpen) throw new Error('another server has taken over from this one')
  }

  /** Connects within 3 s. Closes connections to servers with an older timeline. */
  async function connect (): Promise<Connection> {
    const opened: Connection[] = []
    const attempts: Array<Promise<Connection>> = []
    const expired = delay(connectTimeoutMs, undefined, { ref: false }).then(() => {
      throw new Error(`no connection within ${connectTimeoutMs} ms`)
    })
    expired.catch(() => {})

    async function attempt (url: string): Promise<Connection> {
      const connection = new Connection({ ...options, url })
      try {
        await Promise.race([open(connection), expired])
        opened.push(connection)
        return connection
      } catch (error) {
        connection.destroy()
        throw error
      }
    }

    try {
      for (let round = 0; opened.length === 0 && round < connectTimeoutMs / retryMs; round++) {
        attempts.push(...urls.map(attempt))
        await Promise.race([Promise.any(attempts), delay(retryMs, undefined, { ref: false })])
      }
      await Promise.any(attempts)
    } catch (error) {
      const { errors } = error as AggregateError
      if (urls.length === 1) throw errors.at(-1)
      throw new AggregateError(errors.slice(-urls.length), 'no server takes writes')
    }
    // Another server may have a later timeline.
    const grace = delay(200, undefined, { ref: false })
    if (urls.length > 1) await Promise.race([Promise.allSettled(attempts), grace])
    const [best] = [...opened.filter(({ isOpen }) => isOpen), ...opened] as [Connection]
    // The other attempts continue: one may find a later timeline.
    for (const late of attempts) late.then((other) => { if (other !== best) other.close() }, () => {})
    return best
  }

  /** `isDistributed`: whether the server has Citus. True until the first connection is open. */
  return { connect, isDistributed: () => isCitus }
}

/** Opens a separate connection for a command or a migration. Rejects with DATABASE_UNAVAILABLE on failure. */
export async function openClient (url: string, options: pg.ClientConfig): Promise<pg.Client> {
  try {
    let [connectionString, second] = parseServers(url).urls
    if (second !== undefined) {
      const connection = await createConnector({ url, statementTimeoutMs: 0 }).connect()
      connection.close()
      connectionString = connection.url
    }
    const client = new pg.Client({ connectionString, connectionTimeoutMillis: connectTimeoutMs, ...options })
    // An unhandled 'error' event would crash the process.
    client.on('error', () => {})
    return await client.connect()
  } catch (cause) {
    throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
  }
}
