// What the environment says: every variable, its default and what it may be.
import { isIP } from 'node:net'
import { FormatRegistry, Type, type StaticDecode } from '@sinclair/typebox'
import { Value } from '@sinclair/typebox/value'
import { parseServers } from './database/connection-string.ts'

const unitsInMs = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 }

/** Milliseconds of a duration such as 500ms, 3s, 12h or 90d; undefined when the text is none. */
export function parseDuration (text: string): number | undefined {
  const [, digits, unit] = /^(\d{1,7})(ms|s|m|h|d)$/.exec(text) ?? []
  if (text === '0') return 0
  return unit === undefined ? undefined : Number(digits) * unitsInMs[unit as keyof typeof unitsInMs]
}

const port = '\\d{1,4}|[1-5]\\d{4}|6[0-4]\\d{3}|65[0-4]\\d\\d|655[0-2]\\d|6553[0-5]'

// Environment variables are text: a pattern decides what is accepted, so that
// no library's idea of a conversion (1.5 to 1, "" to 0) can slip in.
const text = (description: string, initial: string | undefined, pattern: string) =>
  Type.String({ description, default: initial, pattern: `^(${pattern})$` })
const number = (description: string, initial: string | undefined, pattern: string) =>
  Type.Transform(text(description, initial, pattern)).Decode(Number).Encode(String)
const duration = (description: string, initial: string, pattern = '0|\\d{1,7}ms|\\d{1,4}[sm]') =>
  Type.Transform(text(description, initial, pattern))
    .Decode((value) => parseDuration(value) as number)
    .Encode(String)

// As pg reads it, for whom there may be no host: then `?host=` names the folder of a socket.
const isUrl = (text: string) => URL.canParse(text.replace('@/', '@base/'), 'postgres://base')
FormatRegistry.Set('url', (text) => URL.canParse(text))
FormatRegistry.Set('connection-string', (text) => {
  try {
    return parseServers(text).urls.every(isUrl)
  } catch {
    return false
  }
})

// A / or ? before the @, which ends the password, would make a part of it the host.
// Behind a = it may be an option's.
const rawPassword = '[^@/?#]*:[^@/?#]*[/?#][^=]*@'

// Three words that pg takes for a fourth, with a warning of many lines that it may not always do so.
const settleSslMode = (url: string) =>
  url.includes('uselibpqcompat=')
    ? url
    : url.replace(/([?&]sslmode=)(?:prefer|require|verify-ca)\b/, '$1verify-full')

const isNetwork = (text: string) => {
  const [address = '', bits = '32', ...rest] = text.split('/')
  const mostBits = isIP(address) === 4 ? 32 : 128
  const isCount = /^[1-9]\d{0,2}$/.test(bits) && Number(bits) <= mostBits
  return rest.length === 0 && isIP(address) !== 0 && isCount
}
// Not a number of hops: whoever reaches the service by a shorter way could choose any address.
FormatRegistry.Set('proxies', (text) => text.split(',').every((item) =>
  /^\s*(loopback|linklocal|uniquelocal)\s*$/.test(item) || isNetwork(item.trim())))

/** Every variable the program reads; the table in docs/operating.md is checked against it. */
export const EnvironmentSchema = Type.Object({
  HOST: text('the address to listen on', '127.0.0.1', '.+'),
  PORT: number('a port from 0 (any free one) to 65535', '3000', port),
  DATABASE_URL: Type.Optional(Type.Transform(Type.String({
    description: 'a PostgreSQL connection string, its hosts separated by commas, ' +
      'its target_session_attrs read-write, primary or any, ' +
      'with / as %2F and ? as %3F in a password; ' +
      'without it the program starts a server of its own',
    pattern: `^postgres(ql)?://(?!${rawPassword}).+`,
    format: 'connection-string'
  })).Decode(settleSslMode).Encode(String)),
  DATA_DIR: text('the folder of the program\'s own PostgreSQL server', '.data', '.+'),
  MIGRATE: text('on, or off to leave migrations to the migrate command', 'on', 'on|off'),
  LOG_LEVEL: text('fatal, error, warn, info, debug, trace or silent', 'info',
    'fatal|error|warn|info|debug|trace|silent'),
  TRUSTED_PROXIES: Type.Optional(Type.String({
    description: 'whose X-Forwarded-For is believed: CIDRs, loopback, linklocal, uniquelocal, ' +
      'separated by commas; nobody\'s without it',
    format: 'proxies'
  })),
  MAX_CONNECTIONS: number(
    'how many connections of callers may be open, 1 to 99999; further ones are closed at once',
    '4000', '[1-9]\\d{0,4}'),
  BODY_LIMIT: number('the largest request body, 1 to 1048576 bytes', '131072',
    '[1-9]\\d{0,5}|10[0-3]\\d{4}|104[0-7]\\d{3}|1048[0-4]\\d\\d|10485[0-6]\\d|104857[0-6]'),
  MEMORY_BUDGET: number('bytes for large bodies and long lists together', '134217728', '[1-9]\\d{7,9}'),
  TOKEN_CACHE_TTL: duration('how long a token is remembered: 0 (not at all) to 5s', '3s',
    '0|[0-5]s|[1-4]?\\d{1,3}ms|5000ms'),
  WRITE_BATCH: Type.Optional(number(
    'how many creates, deletes or lists may share a statement, 1 to 9999 (lists 16, creates 512 at most); ' +
    '1 turns batching off',
    undefined, '[1-9]\\d{0,3}')),
  MAX_QUEUED: number(
    'how many requests of a kind may wait for the database before others are refused, 1 to 9999',
    '1000', '[1-9]\\d{0,3}'),
  STATEMENT_TIMEOUT: duration(
    'how long a statement may run; 0 leaves the limit to the database role, up to 6s', '5s'),
  DRAIN_DELAY: duration('how long to go on serving after SIGTERM', '3s'),
  SHUTDOWN_TIMEOUT: duration('how long after the signal the program ends whatever is in flight', '9s'),
  METRICS_PORT: Type.Optional(
    number('a port from 0 (any free one) to 65535; no metrics without it', undefined, port)),
  METRICS_HOST: text('the address to listen on for metrics', '127.0.0.1', '.+'),
  OTEL_EXPORTER_OTLP_ENDPOINT: Type.Optional(Type.String({
    description: 'the URL of a collector that takes OTLP by HTTP; no traces without it',
    pattern: '^https?://.+',
    format: 'url'
  })),
  OTEL_TRACES_SAMPLER: text('always_on, always_off, traceidratio, or one of them behind parentbased_',
    'parentbased_always_on', '(parentbased_)?(always_on|always_off|traceidratio)'),
  OTEL_TRACES_SAMPLER_ARG: number('the share of traces that traceidratio takes, 0 to 1', '1',
    '0(\\.\\d+)?|1(\\.0+)?'),
  DOCS: text('on, or off to remove /docs', 'on', 'on|off')
})

export type Config = StaticDecode<typeof EnvironmentSchema>

/** The whole configuration, or an Error with a line for each variable that is wrong. */
export function readConfig (environment: NodeJS.ProcessEnv): Config {
  const known = Object.keys(EnvironmentSchema.properties).map((name) => [name, environment[name]])
  const given = Object.fromEntries(known.filter(([, value]) => value !== undefined))
  const values = Value.Default(EnvironmentSchema, given)
  const faults = [...Value.Errors(EnvironmentSchema, values)].map(({ path, schema, value }) =>
    // Without the user and password of a URL.
    `${path.slice(1)}: expected ${schema.description}, ` +
    `got ${JSON.stringify(value).replace(/:\/\/.*@/, '://…@')}`)
  // A value that breaks two rules breaks them in the same words.
  if (faults.length > 0) throw new Error([...new Set(faults)].join('\n'))
  return Value.Decode(EnvironmentSchema, values)
}
