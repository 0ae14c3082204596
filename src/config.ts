// Reads the settings from environment variables.
import { isIPv4, isIPv6 } from 'node:net'
import { connectTimeoutMs, parseConnectionString, urlForm } from './database/connection-string.ts'

interface Setting<Value> {
  initial: string | undefined
  /** The accepted values in words. */
  values: string
  meaning: string
  /** Returns undefined for a value that is not accepted. */
  parse: (text: string) => Value | undefined
}

type ValuesOf<Settings> = {
  [Name in keyof Settings]: Settings[Name] extends Setting<infer Value> ? Value : never
}

const unitsInMs = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** Returns the milliseconds of a duration such as 500ms, 3s, 12h or 90d, or NaN for any other text. */
export function parseDuration (text: string): number {
  const [, digits, unit] = /^(\d{1,7})(ms|s|m|h|d)$/.exec(text) ?? []
  return text === '0' ? 0 : Number(digits) * unitsInMs[unit as keyof typeof unitsInMs]
}

const text = <Initial extends string | undefined> (
  initial: Initial, values: string, meaning: string, isValid: (text: string) => boolean = Boolean
): Setting<string | Extract<Initial, undefined>> =>
    ({ initial, values, meaning, parse: (text) => isValid(text) ? text : undefined })

const oneOf = (initial: string, words: string[], meaning: string) =>
  text(initial, words.join(', '), meaning, (word) => words.includes(word))

const inRange = (value: number, min: number, max: number) => value >= min && value <= max ? value : undefined

// `form` rejects texts that Number() would convert, such as '' to 0 and '0x10' to 16.
const number = <Initial extends string | undefined> (
  initial: Initial, [min, max]: [number, number], meaning: string, form = /^(0|[1-9]\d*)$/
): Setting<number | Extract<Initial, undefined>> => ({
    initial,
    values: `${min} to ${max}`,
    meaning,
    parse: (text) => form.test(text) ? inRange(Number(text), min, max) : undefined
  })

const duration = (initial: string, max: string, meaning: string, min = '0'): Setting<number> => ({
  initial,
  values: `${min} to ${max} with a unit, such as 500ms or 3s`,
  meaning,
  parse: (text) => inRange(parseDuration(text), parseDuration(min), parseDuration(max))
})

// For TRUSTED_PROXIES. Rejects a number of proxies, which Fastify would accept: with a number, a client that
// bypasses the proxies could forge its own address.
const areNetworks = (text: string) => text.split(',').map((item) => item.trim()).every((item) => {
  const [, address = item, bits = '1'] = /^(.+)\/([1-9]\d{0,2})$/.exec(item) ?? []
  const maxBits = isIPv4(address) ? 32 : isIPv6(address) ? 128 : 0
  return ['loopback', 'linklocal', 'uniquelocal'].includes(item) || Number(bits) <= maxBits
})

export interface Rate { count: number, seconds: number }

const rate = (meaning: string): Setting<Rate | undefined> => ({
  initial: undefined,
  values: '1 to 999999 a second or a minute, such as 100/s or 6000/m',
  meaning,
  parse: (text) => {
    const [, count, unit] = /^([1-9]\d{0,5})\/([sm])$/.exec(text) ?? []
    return count === undefined ? undefined : { count: Number(count), seconds: unit === 's' ? 1 : 60 }
  }
})

// Accepts origins only in the form that browsers send: without path, default port or wildcard.
const areOrigins = (text: string) => text.split(',').map((item) => item.trim()).every((item) =>
  /^https?:[^*]+$/.test(item) && URL.canParse(item) && new URL(item).origin === item)

const [maxTokenCacheTtl, maxStatementTimeout] = ['4s', '6s']
/** The longest time that a revoked token has effects: see "After a revocation" in docs/reliability.md. */
export const maxRevocationMs =
  parseDuration(maxTokenCacheTtl) + connectTimeoutMs + parseDuration(maxStatementTimeout) + 2000

const algorithms = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256', 'ES384', 'ES512',
  'EdDSA', 'Ed25519']

/** Accepts https, and http on this machine. Without https, a network attacker could replace the keys. */
export function isSecureUrl (text: string): boolean {
  if (/\s/.test(text) || !URL.canParse(text)) return false
  const { protocol, hostname, username, password } = new URL(text)
  const isLoopback = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)
  return (protocol === 'https:' || (protocol === 'http:' && isLoopback)) && username + password === ''
}

/** RFC 8414, section 2, forbids a query and a fragment. A `|` would make the user `issuer|name` ambiguous. */
const isIssuer = (text: string) => isSecureUrl(text) && !/[?#|]/.test(text)

export const settings = {
  HOST: text('127.0.0.1', 'an address or a host name', 'the address to listen on'),
  PORT: number('3000', [0, 65535], 'the port to listen on; 0 takes any free port'),
  REUSE_PORT: oneOf('off', ['on', 'off'],
    'whether several processes may listen on the port; each process must have this setting'),
  DATABASE_URL: {
    initial: undefined,
    values: urlForm,
    meaning: 'the database, on one host or on several separated by commas; ' +
      'required unless the optional dependencies are installed, which bring a server',
    parse: (url) => parseConnectionString(url) && url
  } as Setting<string | undefined>,
  DATA_DIR: text('.data', 'a folder', 'the data of the server that starts when DATABASE_URL is not set'),
  MIGRATE: oneOf('on', ['on', 'off'], 'whether the service migrates the database when it starts'),
  LOG_LEVEL: oneOf('info', ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'],
    'the least severe log lines to write'),
  TRUSTED_PROXIES: text(undefined,
    'networks such as 10.0.0.0/8, loopback, linklocal or uniquelocal, separated by commas',
    'the proxies that may set X-Forwarded-For', areNetworks),
  MAX_CONNECTIONS: number('4000', [1, 99_999],
    'the number of open client connections; further ones are closed at once'),
  KEEP_ALIVE_TIMEOUT: duration('75s', '1h',
    'how long a client connection may be idle; longer than the idle timeout of a load balancer', '1s'),
  BODY_LIMIT: number('131072', [1, 1_048_576], 'the largest request body, in bytes'),
  MEMORY_BUDGET: number('100663296', [16_777_216, 1_073_741_824],
    'bytes of memory for large request bodies, unsent pages of long lists and files of /docs together'),
  TOKEN_CACHE_TTL: duration('3s', maxTokenCacheTtl, 'how long a token is cached; 0 turns the cache off'),
  WRITE_BATCH: number(undefined, [1, 9999],
    'how many creates, deletes or lists may share a statement (lists 32, the others 512 at most); ' +
    '1 turns batching off'),
  MAX_QUEUED: number('4000', [1, 9999],
    'how many requests of a kind may wait for the database before others are rejected'),
  USER_RATE: rate('how many requests a user may send; further ones get 429; no limit by default'),
  USER_BURST: number(undefined, [1, 999_999],
    'how many requests a user may send at once; the number of USER_RATE in one second by default'),
  FAILED_AUTH_RATE: rate('how many invalid tokens a client address may send before unknown tokens get 429; ' +
    'no limit by default'),
  CORS_ORIGIN: text(undefined,
    'origins such as https://app.example.com, separated by commas, without path or wildcard',
    'the origins of web pages that may call the service; none by default', areOrigins),
  STATEMENT_TIMEOUT: duration('5s', maxStatementTimeout,
    'how long a statement may run; 0 leaves the limit to the database role'),
  DRAIN_DELAY: duration('3s', '1h', 'how long the service goes on serving after SIGTERM'),
  SHUTDOWN_TIMEOUT: duration('9s', '1h',
    'when the program ends after the signal, whatever is in flight; more than DRAIN_DELAY'),
  METRICS_PORT: number(undefined, [0, 65535],
    'the port for metrics; 0 takes any free port; without it there are no metrics'),
  METRICS_HOST: text('127.0.0.1', 'an address or a host name', 'the address to listen on for metrics'),
  OTEL_EXPORTER_OTLP_ENDPOINT: text(undefined, 'a URL that begins with http:// or https://',
    'a collector that takes OTLP by HTTP; without it there are no traces',
    (text) => /^https?:\/\//.test(text) && URL.canParse(text)),
  OTEL_TRACES_SAMPLER: oneOf('parentbased_always_on',
    ['always_on', 'always_off', 'traceidratio'].flatMap((name) => [name, `parentbased_${name}`]),
    'which traces are recorded'),
  OTEL_TRACES_SAMPLER_ARG: number('1', [0, 1],
    'the share of traces that traceidratio records', /^[01](\.\d+)?$/),
  DOCS: oneOf('on', ['on', 'off'], 'whether there is a page at /docs'),
  JWT_ISSUER: text(undefined, 'a URL with https, or with http for this machine, without query and fragment',
    'the identity provider that issues JWTs; without it the service accepts no JWTs', isIssuer),
  JWT_AUDIENCE: text(undefined, 'a text', 'the audience that JWTs must name; required with JWT_ISSUER'),
  JWT_JWKS_URL: text(undefined, 'a URL with https, or with http for this machine',
    'the keys of the provider; without it OpenID discovery names them', isSecureUrl),
  JWT_ALGORITHMS: text('RS256,ES256,EdDSA', `names separated by commas: ${algorithms.join(', ')}`,
    'the algorithms that may sign a JWT',
    (names) => names.split(',').every((name) => algorithms.includes(name.trim()))),
  JWT_TYPE: oneOf('at+jwt', ['at+jwt', 'JWT'], 'the `typ` that JWTs must have'),
  JWT_USER_CLAIM: text('sub', 'the name of a claim', 'the claim that names the user'),
  JWT_SCOPE_CLAIM: text(undefined, 'the name of a claim',
    'the claim that lists the scopes; without it `scope`, or else `scp`'),
  JWT_KEYS_MAX_AGE: duration('24h', '30d',
    'how long keys stay in use while the provider cannot be reached', '20m')
}

export type Config = ValuesOf<typeof settings>

/** Throws an Error that has one line for each invalid variable. */
export function readConfig (environment: NodeJS.ProcessEnv = process.env): Config {
  const faults: string[] = []
  const config = {} as Config & Record<string, unknown>
  for (const [name, { initial, values, parse }] of Object.entries<Setting<unknown>>(settings)) {
    const text = environment[name] ?? initial
    if (text === undefined) continue
    try {
      config[name] = parse(text)
      if (config[name] === undefined) throw new Error(`expected ${values}, got ${JSON.stringify(text)}`)
    } catch (error) {
      faults.push(`${name}: ${(error as Error).message}`)
    }
  }
  const { SHUTDOWN_TIMEOUT: timeout, DRAIN_DELAY: delay } = config
  if (timeout <= delay) {
    faults.push(`SHUTDOWN_TIMEOUT: expected more than DRAIN_DELAY (${delay}ms), got ${timeout}ms`)
  }
  if (config.USER_BURST !== undefined && config.USER_RATE === undefined) {
    faults.push('USER_BURST: expected USER_RATE to be set, too')
  }
  const given = Object.keys(settings).find((name) => name.startsWith('JWT_') && name in environment)
  const missing = ['JWT_ISSUER', 'JWT_AUDIENCE'].filter((name) => given && !(name in environment))
  faults.push(...missing.map((name) => `${name}: expected a value, because ${given} is set`))
  if (faults.length > 0) throw new Error(faults.join('\n'))
  return config
}
