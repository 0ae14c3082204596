// Reads connection strings by libpq's rules: the servers they name and which of these to use.

/** `read-write`: neither a standby nor read-only. `primary`: no standby. `any`: the first to answer. */
const targets = ['read-write', 'primary', 'any'] as const
export type Target = typeof targets[number]

export interface Servers {
  /** A connection string for each server. */
  urls: string[]
  target: Target
}

const words: Record<string, readonly string[]> = {
  target_session_attrs: targets,
  sslmode: ['disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify'],
  sslnegotiation: ['postgres', 'direct'],
  ssl: ['true', '1', '0', 'no-verify'],
  uselibpqcompat: ['true', 'false']
}
// What pg and pg-connection-string read, except `replication` and `binary`, which would break the service.
const known = [
  'application_name', 'client_encoding', 'fallback_application_name', 'host',
  'idle_in_transaction_session_timeout', 'lock_timeout', 'options', 'password', 'port', 'query_timeout',
  'sslcert', 'sslkey', 'sslrootcert', 'statement_timeout', 'user', ...Object.keys(words)
]

/** The form of a connection string, as error messages and docs/operating.md show it. */
export const urlForm = 'postgres://user:password@host:port/database, ' +
  'with / as %2F and ? as %3F in the password'
// A raw / or ? in the password would make a part of the password the host.
const rawPassword = /^[^:]*:\/\/[^@/?#]*:[^@/?#]*[/?#][^=]*@/
const parts = /^(postgres(?:ql)?:\/\/(?:[^/?#]*@)?)(?=.)([^/?#]*)([^?#]*)\??(.*)$/s

/**
 * Reads `postgres://user@one:5432,two/db?target_session_attrs=read-write`. The parameters `host` and `port`
 * may be lists, too. Throws an Error that says what was expected and shows neither user nor password.
 */
export function parseServers (url: string): Servers {
  const match = rawPassword.test(url) ? null : parts.exec(url)
  if (match === null) throw refusal(urlForm, url.replace(/:\/\/.*@/s, '://…@').replace(/\?.*/s, '?…'))
  const [, before, authority = '', path, query] = match as string[]
  const parameters = new URLSearchParams(query)
  for (const [name, value] of parameters) checkParameter(name, value)
  const target = (parameters.get('target_session_attrs') ?? 'read-write') as Target
  const hosts = (parameters.get('host') ?? authority).split(',')
  const ports = parameters.get('port')?.split(',') ?? []
  for (const place of [...authority.split(','), ...ports.map((port) => `:${port}`)]) checkPort(place)
  if (hosts.length === 1) return { urls: [url], target }

  if (ports.length > 1 && ports.length !== hosts.length) {
    throw refusal(`one port or a port for each of the ${hosts.length} hosts`, ports.join(','))
  }
  const urls = hosts.map((host, index) => {
    const own = new URLSearchParams(parameters)
    if (parameters.has('host')) own.set('host', host)
    if (ports.length > 0) own.set('port', ports[index] ?? ports[0] as string)
    return `${before}${parameters.has('host') ? authority : host}${path}?${own}`
  })
  return { urls, target }
}

function checkParameter (name: string, value: string): void {
  if (!known.includes(name)) throw refusal(`only the parameters ${known.toSorted().join(', ')}`, name)
  const allowed = words[name]
  if (allowed?.includes(value) === false) throw refusal(`${name} to be one of ${allowed.join(', ')}`, value)
}

/** Checks what may stand between two commas: a host, a port, both or neither. */
function checkPort (place: string): void {
  if (!URL.canParse(`postgres://${place.replace(/^(?=:|$)/, 'host')}`)) {
    throw refusal('a host and a port up to 65535', place)
  }
}

const refusal = (expected: string, got: string) =>
  new Error(`expected ${expected}, got ${JSON.stringify(got)}`)

/** Replaces the sslmodes that pg treats as `verify-full`, to avoid pg's long warning. */
export function normalizeSslMode (url: string): string {
  if (url.includes('uselibpqcompat=')) return url
  return url.replace(/([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/, '$1verify-full')
}
