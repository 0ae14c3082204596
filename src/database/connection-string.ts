// Parses connection strings by libpq's rules.

/** Which server to use. `read-write`: neither a standby nor read-only. `primary`: not a standby. */
const targets = ['read-write', 'primary', 'any'] as const

const words: Record<string, readonly string[]> = {
  target_session_attrs: targets,
  sslmode: ['disable', 'prefer', 'require', 'verify-ca', 'verify-full', 'no-verify']
}
// The accepted parameters. pg also accepts `replication` and `binary`, which would break the service.
const known = ['application_name', 'host', 'idle_in_transaction_session_timeout', 'lock_timeout', 'options',
  'password', 'port', 'sslcert', 'sslkey', 'sslnegotiation', 'sslrootcert', 'user', ...Object.keys(words)]

export const urlForm = 'postgres://user:password@host:port/database, ' +
  'with / as %2F and ? as %3F in the password'
// Matches a password with an unescaped /, ? or #. pg would read a part of such a password as the host.
const rawPassword = /^[^:]*:\/\/[^@/?#]*:[^@/?#]*[/?#][^=]*@/
const parts = /^(postgres(?:ql)?:\/\/(?:[^/?#]*@)?)(?=.)([^/?#]*)([^?#]*)(.*)$/s

/** Splits `postgres://user@one:5432,two/db` into a URL per server. Errors show neither user nor password. */
export function parseServers (url: string): { urls: string[], target: typeof targets[number] } {
  const match = rawPassword.test(url) ? null : parts.exec(url)
  if (match === null) throw unexpected(urlForm, url.replace(/:\/\/.*@/s, '://…@').replace(/\?.*/s, '?…'))
  const [, before, authority = '', path, query] = match
  const parameters = new URLSearchParams(query)
  for (const [name, value] of parameters) {
    if (!known.includes(name)) throw unexpected(`only the parameters ${known.toSorted().join(', ')}`, name)
    const allowed = words[name] ?? [value]
    if (!allowed.includes(value)) throw unexpected(`${name} to be one of ${allowed.join(', ')}`, value)
    if (name === 'host' && value.includes(',')) throw unexpected('several hosts only before the path', value)
  }
  const target = (parameters.get('target_session_attrs') ?? 'read-write') as typeof targets[number]
  const hosts = authority.split(',')
  for (const place of [...hosts, `:${parameters.get('port') ?? ''}`]) {
    const isPlace = URL.canParse(`postgres://${place.replace(/^(?=:|$)/, 'host')}`)
    if (!isPlace) throw unexpected('a host and a port up to 65535', place)
  }
  return { urls: hosts.map((host) => `${before}${host}${path}${query}`), target }
}

const unexpected = (expected: string, got: string) =>
  new Error(`expected ${expected}, got ${JSON.stringify(got)}`)

/** Replaces the sslmodes that pg treats as `verify-full`, because pg prints a long warning about them. */
export const normalizeSslMode = (url: string): string =>
  url.replace(/([?&]sslmode=)(?:prefer|require|verify-ca)(?=&|$)/, '$1verify-full')
