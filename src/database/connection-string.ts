// Reads the connection string DATABASE_URL, and turns each of its servers into fields for pg.
// pg's own parser accepts only one host, and ignores unknown parameters. If the string has a space or a lone
// `%`, it encodes the whole string again.
import { readFileSync } from 'node:fs'
import { createSecureContext, getCACertificates } from 'node:tls'
import type pg from 'pg'

export interface Server {
  /** The host and the port, for logs. */
  name: string
  /** Reads the certificates again at each call, because they may have been renewed. */
  fields: () => pg.ClientConfig
  /** Whether the server must prove by channel binding that its certificate is its own. */
  mustBind: boolean
}

export type Target = 'read-write' | 'primary' | 'any'

/** How long requests, and commands, wait for a connection. */
export const [connectTimeoutMs, commandConnectTimeoutMs] = [3000, 10_000]
export const urlForm = 'postgres://user:password@host:port/database, with % as %25, / as %2F, ? as %3F, ' +
  '# as %23, @ as %40, [ as %5B and space as %20 in user and password'

interface Parameter { values: string, isValid: (value: string) => boolean }

const text: Parameter = { values: 'a text', isValid: Boolean }
const oneOf = (...values: string[]): Parameter =>
  ({ values: `one of ${values.join(', ')}`, isValid: (value) => values.includes(value) })
const integer = (values: string, max: number): Parameter =>
  ({ values, isValid: (value) => /^\d+$/.test(value) && Number(value) <= max })

const accepted = {
  application_name: text,
  channel_binding: oneOf('disable', 'prefer', 'require'),
  connect_timeout: integer('a number of seconds', 999_999),
  host: { values: 'one host', isValid: (value: string) => value !== '' && !value.includes(',') },
  options: text,
  password: text,
  port: integer('a port up to 65535', 65_535),
  sslcert: text,
  sslkey: text,
  sslmode: oneOf('disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify'),
  sslnegotiation: oneOf('postgres', 'direct'),
  sslrootcert: text,
  target_session_attrs: oneOf('read-write', 'primary', 'any'),
  user: text
}
type Parameters = Partial<Record<keyof typeof accepted, string>>

// Parameters of libpq and of other drivers. Errors show no other names: they may be a part of a password.
const rejected = ('binary client_encoding connection_limit dbname fallback_application_name gssencmode ' +
  'hostaddr idle_in_transaction_session_timeout keepalives keepalives_idle load_balance_hosts lock_timeout ' +
  'passfile pgbouncer pool_timeout query_timeout replication require_auth schema service ssl sslaccept ' +
  'sslcrl sslpassword sslsni statement_timeout supa uselibpqcompat').split(' ')

const unexpected = (expected: string) => new Error(`expected ${expected}`)

/** Throws errors that show nothing of the string but the names of known parameters. */
export function parseConnectionString (string: string): { servers: Server[], target: Target } {
  const [, scheme = '', body = ''] = /^(postgres(?:ql)?:\/\/)(\S+)$/.exec(string.trim()) ?? []
  const at = body.lastIndexOf('@')
  const [credentials, address] = [body.slice(0, Math.max(at, 0)), body.slice(at + 1)]
  const [hosts = ''] = address.split(/[/?#]/, 1)
  const rest = address.slice(hosts.length)
  // In a password, one of these characters would end the host of a URL.
  const isAmbiguous = /[/?#]/.test(credentials) || rest.includes('#')
  // PostgreSQL's protocol ends a text with the character NUL.
  if (scheme === '' || isAmbiguous || body.includes('%00')) throw unexpected(urlForm)
  const [user = '', ...password] = credentials.split(':')
  const parameters: Parameters = {
    user: decode(user),
    password: decode(password.join(':')),
    ...readParameters(new URL(`postgres://${rest}`).searchParams)
  }
  const servers = hosts.split(',').map((host) => {
    const url = URL.parse(`postgres://${host}${rest}`)
    if (url !== null && (host !== '' || hosts === '')) return toServer(url, parameters)
    throw unexpected('a host and a port up to 65535 for each server')
  })
  readTls(parameters)
  return { servers, target: (parameters.target_session_attrs ?? 'read-write') as Target }
}

function decode (encoded: string): string {
  try {
    return decodeURIComponent(encoded)
  } catch {
    throw unexpected(urlForm)
  }
}

function readParameters (query: URLSearchParams): Parameters {
  const known = new Map(Object.entries(accepted))
  for (const [name, value] of query) {
    const parameter = known.get(name)
    if (parameter === undefined) {
      const got = rejected.includes(name) ? name : 'another name'
      throw unexpected(`only the parameters ${[...known.keys()].join(', ')}, got ${got}`)
    }
    if (!parameter.isValid(value)) throw unexpected(`${name} to be ${parameter.values}`)
  }
  return Object.fromEntries(query)
}

function toServer ({ host, hostname, port, pathname }: URL, parameters: Parameters): Server {
  const { channel_binding: binding = 'disable', connect_timeout: seconds } = parameters
  const fields = {
    application_name: parameters.application_name,
    connectionTimeoutMillis: Number(seconds) * 1000 || undefined,
    database: decode(pathname.slice(1)),
    enableChannelBinding: binding !== 'disable',
    host: parameters.host ?? decode(hostname).replace(/^\[(.*)\]$/, '$1'),
    options: parameters.options,
    password: parameters.password,
    port: Number(parameters.port ?? port),
    sslnegotiation: parameters.sslnegotiation,
    user: parameters.user
  } as pg.ClientConfig
  return {
    name: parameters.host ?? host,
    fields: () => ({ ...fields, ssl: readTls(parameters) }),
    mustBind: binding === 'require'
  }
}

/** Returns undefined if no parameter is about TLS. Then pg reads PGSSLMODE. */
function readTls ({ sslmode, sslnegotiation, sslcert, sslkey, sslrootcert }: Parameters) {
  const isDirect = sslnegotiation === 'direct'
  if (sslmode === 'disable' && isDirect) throw unexpected('another sslmode with sslnegotiation=direct')
  const files = Object.entries({ sslcert, sslkey, sslrootcert }).filter(([, path]) => path !== undefined)
  if (sslmode === 'disable') return false
  if (sslmode === undefined && files.length === 0 && !isDirect) return undefined
  try {
    const read = (path?: string) => path === undefined ? undefined : readFileSync(path)
    const ca = sslrootcert === 'system' ? getCACertificates('system') : read(sslrootcert)
    const pair = { cert: read(sslcert), key: read(sslkey) }
    createSecureContext(pair)
    // The modes `prefer`, `require` and `verify-ca` mean `verify-full`, as in pg.
    return { rejectUnauthorized: sslmode !== 'no-verify', ca, ...pair }
  } catch (error) {
    const names = files.map(([name]) => name).join(' and ')
    throw unexpected(`${names} to name readable PEM files (${(error as NodeJS.ErrnoException).code})`)
  }
}
