// Reads the settings from environment variables.
import { readFileSync } from 'node:fs'
import { isIPv4, isIPv6 } from 'node:net'
import { parseConnectionString } from './database/connection-string.ts'
import { duration, listOf, number, oneOf, text, type Setting, type ValuesOf } from './setting-types.ts'

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
  values: '1/s to 999999/s, or 1/m to 999999/m',
  meaning,
  parse: (text) => {
    const [, count, unit] = /^([1-9]\d{0,5})\/([sm])$/.exec(text) ?? []
    return count === undefined ? undefined : { count: Number(count), seconds: unit === 's' ? 1 : 60 }
  }
})

// Accepts origins only in the form that browsers send: without path, default port or wildcard.
const areOrigins = (text: string) => text.split(',').map((item) => item.trim()).every((item) =>
  /^https?:[^*]+$/.test(item) && URL.canParse(item) && new URL(item).origin === item)

// The command `user erase` adds these to the time for which it waits.
export const [maxTokenCacheTtl, maxStatementTimeout] = ['4s', '6s']

/** Accepts https, and http on this machine. Without https, a network attacker could replace the keys. */
export function isSecureUrl (text: string): boolean {
  if (/\s/.test(text) || !URL.canParse(text)) return false
  const { protocol, hostname, username, password } = new URL(text)
  const isLoopback = /^(localhost|127(\.\d+){3}|\[::1\])$/.test(hostname)
  return (protocol === 'https:' || (protocol === 'http:' && isLoopback)) && username + password === ''
}

/** RFC 8414, section 2, forbids a query and a fragment. A `|` would make the user `issuer|name` ambiguous. */
const isIssuer = (text: string) => isSecureUrl(text) && !/[?#|]/.test(text)

const isHttpUrl = (text: string) => /^https?:\/\//.test(text) && URL.canParse(text)

const parseUrl = (url: string) => parseConnectionString(url) && url

export const settings = {
  HOST: text('127.0.0.1', 'an address or a host name', 'the address to listen on'),
  PORT: number('3000', [0, 65535], 'the port to listen on; 0 takes any free port'),
  REUSE_PORT: oneOf('off', ['on', 'off'], 'whether several processes may share the port'),
  DATABASE_URL: {
    initial: undefined,
    // The parser's message has more.
    values: 'postgres://user:password@host:port/database',
    meaning: 'the database, on one or several hosts, separated by commas; required in the image',
    parse: parseUrl
  } as Setting<string | undefined>,
  DATABASE_URL_FILE: {
    initial: undefined,
    values: 'a readable file',
    meaning: 'a file with the DATABASE_URL, such as a secret',
    parse: (file) => parseUrl(readFileSync(file, 'utf8').trim())
  } as Setting<string | undefined>,
  DATA_DIR: text('.data', 'a folder', 'the data of the server that starts without DATABASE_URL'),
  MIGRATE: oneOf('on', ['on', 'off'], 'whether the start migrates the database'),
  LOG_LEVEL: oneOf('info', ['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'],
    'the least severe log lines to write'),
  LOG_REQUESTS: oneOf('writes', ['off', 'writes', 'all'],
    'which requests get a log line; writes are those that may change data'),
  TRUSTED_PROXIES: text(undefined,
    'networks such as 10.0.0.0/8, loopback, linklocal or uniquelocal, separated by commas',
    'the proxies that may set X-Forwarded-For', areNetworks),
  MAX_CONNECTIONS: number('4000', [1, 99_999],
    'how many client connections may be open'),
  KEEP_ALIVE_TIMEOUT: duration('75s', '1h',
    'how long a client connection may be idle', '1s'),
  BODY_LIMIT: number('16384', [1, 131_072], 'the largest request body, in bytes'),
  MEMORY_BUDGET: number('100663296', [16_777_216, 1_073_741_824],
    'bytes of memory for long lists and files of /docs'),
  TOKEN_CACHE_TTL: duration('3s', maxTokenCacheTtl, 'how long a token is cached; 0 turns the cache off'),
  WRITE_BATCH: number(undefined, [1, 9999],
    'how many writes (at most 512) or lists (32, on Citus none) may share a statement; 1 turns batching off'),
  MAX_QUEUED: number('4000', [1, 9999],
    'how many requests of a kind may wait for the database'),
  USER_RATE: rate('how many requests a user may send before 429'),
  USER_BURST: number(undefined, [1, 999_999],
    'how many requests a user may send at once; by default those of USER_RATE in a second'),
  FAILED_AUTH_RATE: rate('how many invalid tokens a client address may send before unknown tokens get 429'),
  CORS_ORIGIN: text(undefined,
    'origins such as https://app.example.com, separated by commas, without path or wildcard',
    'the origins of web pages that may call the service', areOrigins),
  STATEMENT_TIMEOUT: duration('5s', maxStatementTimeout,
    'how long a statement may run; 0 leaves the limit to the database role, at most 6 s'),
  DRAIN_DELAY: duration('3s', '1h', 'how long the service serves after SIGTERM'),
  SHUTDOWN_TIMEOUT: duration('9s', '1h',
    'when the program ends after the signal; more than DRAIN_DELAY'),
  METRICS_PORT: number(undefined, [0, 65535],
    'the port for metrics; 0 takes any free port; by default there are no metrics'),
  METRICS_HOST: text('127.0.0.1', 'an address or a host name', 'the address to listen on for metrics'),
  OTEL_EXPORTER_OTLP_ENDPOINT: text(undefined,
    'an http or https URL, without /v1/traces',
    'a collector that takes OTLP by HTTP; by default there are no traces',
    (text) => isHttpUrl(text) && !/\/v1\/traces\/?$/.test(text)),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: text(undefined, 'an http or https URL',
    'the whole URL for traces, instead of OTEL_EXPORTER_OTLP_ENDPOINT', isHttpUrl),
  OTEL_EXPORTER_OTLP_PROTOCOL: oneOf('http/json', ['http/json', 'http/protobuf'],
    'has no effect: the service always sends JSON'),
  OTEL_TRACES_SAMPLER: oneOf('parentbased_always_on',
    ['always_on', 'always_off', 'traceidratio'].flatMap((name) => [name, `parentbased_${name}`]),
    'which traces are recorded'),
  OTEL_TRACES_SAMPLER_ARG: number('1', [0, 1],
    'the share of traces that traceidratio records', /^[01](\.\d+)?$/),
  DOCS: oneOf('on', ['on', 'off'], 'whether there is a page at /docs'),
  JWT_ISSUER: text(undefined, 'an https URL, or http for this machine, without query and fragment',
    'the identity provider; by default the service accepts no JWTs', isIssuer),
  JWT_AUDIENCE: text(undefined, 'a text', 'the audience of JWTs; required with JWT_ISSUER'),
  JWT_JWKS_URL: text(undefined, 'an https URL, or http for this machine',
    'the keys of the provider; by default OpenID discovery names them', isSecureUrl),
  JWT_ALGORITHMS: listOf('RS256,ES256,EdDSA', ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512', 'ES256',
    'ES384', 'ES512', 'EdDSA', 'Ed25519'], 'the algorithms that may sign a JWT'),
  JWT_TYPE: listOf('at+jwt', ['at+jwt', 'JWT', 'none'],
    'the types (`typ`) of JWTs; none: without a type'),
  JWT_USER_CLAIM: text('sub', 'the name of a claim', 'the claim that names the user'),
  JWT_SCOPE_CLAIM: text(undefined, 'the name of a claim',
    'the claim that lists the scopes; by default `scope`, or else `scp`'),
  JWT_KEYS_MAX_AGE: duration('24h', '30d',
    'how long keys are used while the provider is away', '20m')
}

export type Config = ValuesOf<typeof settings>

/** Settings of earlier versions. */
const renamed = { MAX_WAITING: 'MAX_QUEUED' }

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
  for (const [name, newName] of Object.entries(renamed)) {
    if (name in environment) faults.push(`${name}: this setting is now called ${newName}`)
  }
  if (config.DATABASE_URL !== undefined && config.DATABASE_URL_FILE !== undefined) {
    faults.push('DATABASE_URL_FILE: expected DATABASE_URL not to be set, too')
  }
  config.DATABASE_URL ??= config.DATABASE_URL_FILE
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
