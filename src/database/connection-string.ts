// Reads DATABASE_URL. pg-connection-string reads the string of each server. This file adds several hosts, a
// list of known parameters, and errors without any part of the string.
import { createSecureContext, getCACertificates } from 'node:tls'
import type pg from 'pg'
import { parseIntoClientConfig } from 'pg-connection-string'

export interface Server {
  /** The host and the port, for logs. */
  name: string
  /** Reads the certificates again at each call, because they may have been renewed. */
  fields: () => pg.ClientConfig
}

export type Target = 'read-write' | 'primary' | 'any'

export const urlForm = 'postgres://user:password@host:port/database, with % as %25, / as %2F, ? as %3F, ' +
  '# as %23, @ as %40, [ as %5B and space as %20 in user and password'

interface Parameter { values: string, isValid: (value: string) => boolean }

const text: Parameter = { values: 'a text', isValid: Boolean }
const oneOf = (...values: string[]): Parameter =>
  ({ values: `one of ${values.join(', ')}`, isValid: (value) => values.includes(value) })
const integer = (values: string, max: number): Parameter =>
  ({ values, isValid: (value) => /^\d+$/.test(value) && Number(value) <= max })

const accepted = new Map(Object.entries({
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
}))

// Parameters of libpq and of other drivers. Errors show no other names: they may be a part of a password.
const rejected = ('binary client_encoding connection_limit dbname fallback_application_name gssencmode ' +
  'hostaddr idle_in_transaction_session_timeout keepalives keepalives_idle load_balance_hosts lock_timeout ' +
  'passfile pgbouncer pool_timeout query_timeout replication require_auth schema service ssl sslaccept ' +
  'sslcrl sslpassword sslsni statement_timeout supa uselibpqcompat').split(' ')

const unexpected = (expected: string) => new Error(`expected ${expected}`)

/**
 * Throws errors that show nothing of the string but the names of known parameters. `target` is undefined if
 * the string names one server and no target.
 */
export function parseConnectionString (string: string): { servers: Server[], target: Target | undefined } {
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
  const { searchParams } = new URL(`postgres://${rest}`)
  checkParameters(searchParams)
  const exact = { user: decode(user), password: decode(password.join(':')) }
  const servers = hosts.split(',').map((host) => {
    const url = URL.parse(`postgres://${host}${rest}`)
    if (url !== null && (host !== '' || hosts === '')) return toServer(url, exact)
    throw unexpected('a host and a port up to 65535 for each server')
  })
  checkTls(servers[0] as Server, searchParams)
  const several = servers.length > 1 ? 'read-write' : undefined
  return { servers, target: (searchParams.get('target_session_attrs') ?? several) as Target | undefined }
}

function decode (encoded: string): string {
  try {
    return decodeURIComponent(encoded)
  } catch {
    throw unexpected(urlForm)
  }
}

function checkParameters (query: URLSearchParams): void {
  for (const [name, value] of query) {
    const parameter = accepted.get(name)
    if (parameter === undefined) {
      const got = rejected.includes(name) ? name : 'another name'
      throw unexpected(`only the parameters ${[...accepted.keys()].join(', ')}, got ${got}`)
    }
    if (!parameter.isValid(value)) throw unexpected(`${name} to be ${parameter.values}`)
  }
}

/** `user` and `password` are already decoded: pg-connection-string would change some passwords. */
function toServer (url: URL, { user, password }: { user: string, password: string }): Server {
  const query = new URLSearchParams(url.search)
  const seconds = Number(query.get('connect_timeout') ?? Infinity) || Infinity
  const usesSystemCa = query.get('sslrootcert') === 'system'
  if (usesSystemCa) query.set('sslrootcert', '')
  // Without this, pg-connection-string warns that the next version checks less for some modes.
  const isVerified = usesSystemCa || /^(prefer|require|verify-ca)$/.test(query.get('sslmode') ?? '')
  if (isVerified) query.set('sslmode', 'verify-full')
  const string = `postgres://${url.host}${url.pathname}?${query}`
  const fields = {
    database: decode(url.pathname.slice(1)),
    connectionTimeoutMillis: seconds * 1000,
    enableChannelBinding: /prefer|require/.test(query.get('channel_binding') ?? '')
  }
  return {
    name: query.get('host') ?? url.host,
    fields () {
      const parsed = parseIntoClientConfig(string)
      if (usesSystemCa) parsed.ssl = { ...parsed.ssl as object, ca: getCACertificates('system') }
      return { ...parsed, user: parsed.user || user, password: parsed.password || password, ...fields }
    }
  }
}

/** Fails at the start for a wrong certificate. */
function checkTls ({ fields }: Server, query: URLSearchParams): void {
  if (query.get('sslmode') === 'disable' && query.get('sslnegotiation') === 'direct') {
    throw unexpected('another sslmode with sslnegotiation=direct')
  }
  try {
    const { ssl } = fields()
    if (typeof ssl === 'object') createSecureContext(ssl)
  } catch (error) {
    const names = ['sslcert', 'sslkey', 'sslrootcert'].filter((name) => query.has(name)).join(' and ')
    throw unexpected(`${names} to name readable PEM files (${(error as NodeJS.ErrnoException).code})`)
  }
}
