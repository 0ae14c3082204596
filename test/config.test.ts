import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { readConfig, settings, type Config } from '../src/config.ts'

type Variable = keyof Config

const same = (...texts: string[]) => Object.fromEntries(texts.map((text) => [text, text]))
const integers = (min: number, max: number) => ({
  good: { [min]: min, [max]: max }, bad: ['', `${min - 1}`, `${max + 1}`, '1.5', '1e3', ' 1', '007', '0x10']
})
const durations = (good: Record<string, number>, ...bad: string[]) =>
  ({ good, bad: ['', '3', '3 s', '-1s', '1.5s', '12345678ms', 's', '3S', ...bad] })

const words = (...texts: string[]) => ({ good: same(...texts), bad: ['', texts[0] + ' ', 'X', 'true'] })
const rates = {
  good: {
    '1/s': { count: 1, seconds: 1 },
    '999999/s': { count: 999_999, seconds: 1 },
    '6000/m': { count: 6000, seconds: 60 }
  },
  bad: ['', '0/s', '-1/s', '1.5/s', '007/s', '1000000/s', '100', '100/h', '100/1s', '100 / s', '100/S', '/s']
}
const samplers = ['always_on', 'always_off', 'traceidratio']

const values: Record<Variable, { good: Record<string, unknown>, bad: string[] }> = {
  HOST: { good: same('0.0.0.0', '::1', 'localhost'), bad: [''] },
  PORT: integers(0, 65535),
  REUSE_PORT: words('on', 'off'),
  DATABASE_URL: {
    good: {
      ...same(
        'postgres://localhost/plants', 'postgresql://u:p@h:5432/d', 'postgres://%2Ftmp/d', 'postgres:///d',
        'postgres://u:p@/d?host=/tmp', 'postgres://u:p%2Fw@h/d', 'postgres://h:5432/d?user=u@h',
        'postgres://h/d?sslmode=disable',
        'postgres://one:5432,two/d?target_session_attrs=primary',
        'postgres://h/d?sslrootcert=/ca.pem&options=-c%20jit%3Doff'
      ),
      'postgres://h/d?sslmode=prefer': 'postgres://h/d?sslmode=verify-full',
      'postgres://h/d?sslmode=require&user=y': 'postgres://h/d?sslmode=verify-full&user=y',
      'postgres://h/d?user=y&sslmode=verify-ca': 'postgres://h/d?user=y&sslmode=verify-full'
    },
    bad: [
      '', 'localhost', 'mysql://localhost/plants', 'postgres://', 'Postgres://localhost',
      'postgres://u:p/w@h/d', 'postgres://h:port/d', 'postgres://u:1?2@h/d', 'postgres://u:1#2@h/d',
      'postgres://u:p?w@h/d?sslmode=disable', 'postgres://one,two:99999/d', 'postgres://h/d?port=99999',
      'postgres://u@/d?host=/tmp,two', 'postgres://h/d?sslmode=', 'postgres://h/d?replication=true',
      'postgres://h/d?ssl=true', 'postgres://h/d?statement_timeout=9000', 'postgres://h/d?query_timeout=9000',
      'postgres://h/d#x'
    ]
  },
  DATA_DIR: { good: same('data', '/var/lib/plants'), bad: [''] },
  MIGRATE: words('on', 'off'),
  LOG_LEVEL: words('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'),
  TRUSTED_PROXIES: {
    good: same('loopback', 'linklocal, uniquelocal', '10.0.0.0/8', '::1', '192.168.1.1,fd00::/8'),
    bad: [
      '', '1', 'true', '10.0.0.0/33', '10.0.0.0/0', '10.0.0/8', '::1/129', '10.0.0.0/8/8', 'loopback,',
      'proxy.example'
    ]
  },
  MAX_CONNECTIONS: integers(1, 99_999),
  BODY_LIMIT: integers(1, 1_048_576),
  MEMORY_BUDGET: integers(16_777_216, 1_073_741_824),
  TOKEN_CACHE_TTL: durations({ 0: 0, '0ms': 0, '999ms': 999, '4000ms': 4000, '4s': 4000 }, '5s', '4001ms'),
  WRITE_BATCH: integers(1, 9999),
  MAX_QUEUED: integers(1, 9999),
  USER_RATE: rates,
  USER_BURST: integers(1, 999_999),
  FAILED_AUTH_RATE: rates,
  CORS_ORIGIN: {
    good: same('https://app.example.com', 'https://a.example, http://localhost:5173', 'http://[::1]:8080'),
    bad: [
      '', '*', 'null', 'app.example.com', 'https://', 'https://a.example/', 'https://a.example?x',
      'https://A.example', 'https://a.example:443', 'https://user@a.example', 'https://*.example.com',
      'https://a.example,', 'https://a.example https://b.example', 'ftp://a.example', 'https://ä.example'
    ]
  },
  STATEMENT_TIMEOUT: durations({ 0: 0, '500ms': 500, '6s': 6000 }, '7s', '6001ms', '1m'),
  DRAIN_DELAY: durations({ 0: 0, '1ms': 1, '3s': 3000 }, '2h', '1d'),
  SHUTDOWN_TIMEOUT: durations({ '3001ms': 3001, '3600000ms': 3_600_000, '1h': 3_600_000 }, '0', '3s', '2h'),
  METRICS_PORT: integers(0, 65535),
  METRICS_HOST: { good: same('0.0.0.0'), bad: [''] },
  OTEL_EXPORTER_OTLP_ENDPOINT: {
    good: same('http://localhost:4318', 'https://traces/x'),
    bad: ['', 'localhost:4318', 'ftp://h', 'http://', 'http://h:port']
  },
  OTEL_TRACES_SAMPLER: words(...samplers.flatMap((name) => [name, `parentbased_${name}`])),
  OTEL_TRACES_SAMPLER_ARG: {
    good: { 0: 0, 1: 1, 0.25: 0.25, '1.0': 1 }, bad: ['', '2', '1.1', '-1', '.5', '1e-3']
  },
  DOCS: words('on', 'off'),
  JWT_ISSUER: {
    good: same('https://id.example', 'https://id.example/', 'https://id.example:8443/realms/plants',
      'http://localhost:1', 'http://127.0.0.1:9', 'http://[::1]:9/x'),
    bad: [
      '', 'id.example', 'http://id.example', 'http://127.0.0.1.example', 'ftp://id.example',
      'https://id.example?x', 'https://id.example/#x', 'https://id.example/a|b', 'https://u:p@id.example',
      'https://', ' https://id.example', 'https://id.example\n'
    ]
  },
  JWT_AUDIENCE: { good: same('plants', 'https://plants.example'), bad: [''] },
  JWT_JWKS_URL: {
    good: same('https://id.example/keys?p=1', 'http://localhost/keys'),
    bad: ['', 'http://id.example/keys', 'file:///keys', '/keys', 'https://u@id.example/keys']
  },
  JWT_ALGORITHMS: {
    good: same('RS256', 'ES256, EdDSA', 'PS512,Ed25519'),
    bad: ['', 'none', 'HS256', 'RS256,', 'RS256 ES256', 'rs256', 'RS256,none']
  },
  JWT_TYPE: words('at+jwt', 'JWT'),
  JWT_USER_CLAIM: { good: same('sub', 'https://id.example/user'), bad: [''] },
  JWT_SCOPE_CLAIM: { good: same('permissions'), bad: [''] },
  JWT_KEYS_MAX_AGE: durations({ '20m': 1_200_000, '24h': 86_400_000, '30d': 2_592_000_000 },
    '0', '19m', '1199s', '31d', '721h', '1w')
}

// The service rejects a JWT setting unless both of these settings are set.
const companions = { JWT_ISSUER: 'https://id.example', JWT_AUDIENCE: 'plants' }

t.test('this file tests every setting, and the table in docs/operating.md has their defaults', async (t) => {
  t.strictSame(Object.keys(values), Object.keys(settings))
  const document = await readFile(join(import.meta.dirname, '../docs/operating.md'), 'utf8')
  const [, table = ''] =
    /\| Variable \| Default \| Values \| Meaning \|\n\|[-|]+\n(.*?)\n\n/s.exec(document) ?? []
  t.equal(table, Object.entries(settings).map(([name, { initial, values, meaning }]) => {
    // The text above the table describes the units of durations.
    const range = values.replace(' with a unit, such as 500ms or 3s', '')
    return `| \`${name}\` | ${initial === undefined ? '' : `\`${initial}\``} | ${range} | ${meaning} |`
  }).join('\n'))
  const defaults = Object.entries(settings).map(([name, { initial, parse }]) =>
    [name, initial === undefined ? undefined : parse(initial)])
  t.strictSame(readConfig({}), Object.fromEntries(defaults))
})

/** Maps a setting to the settings that the service requires with this setting. */
const needs: Record<string, Record<string, string>> = { USER_BURST: { USER_RATE: '1/s' } }

for (const [name, { good, bad }] of Object.entries(values)) {
  t.test(`${name} accepts its values and no others`, async (t) => {
    const others = name.startsWith('JWT_') ? companions : {}
    for (const [text, value] of Object.entries(good)) {
      t.strictSame(readConfig({ ...others, ...needs[name], [name]: text })[name as Variable], value, text)
    }
    for (const text of bad) {
      t.throws(() => readConfig({ ...others, ...needs[name], [name]: text }),
        { message: new RegExp(`^${name}: expected .*$`) }, JSON.stringify(text))
    }
  })
}

const wrongUrl =
  'DATABASE_URL: expected postgres://user:password@host:port/database, with / as %2F and ' +
  '? as %3F in the password'

/** Maps an environment to the message of the error. */
const faults: Array<[environment: Record<string, string>, message: string | RegExp]> = [
  [{ PORT: '65536', MIGRATE: 'yes', PATH: '/bin', PORTS: 'x' },
    'PORT: expected 0 to 65535, got "65536"\nMIGRATE: expected on, off, got "yes"'],
  [{ DRAIN_DELAY: '10' }, 'DRAIN_DELAY: expected 0 to 1h with a unit, such as 500ms or 3s, got "10"'],
  [{ USER_RATE: '100' },
    'USER_RATE: expected 1 to 999999 a second or a minute, such as 100/s or 6000/m, got "100"'],
  [{ CORS_ORIGIN: '*' }, 'CORS_ORIGIN: expected origins such as https://app.example.com, separated by ' +
    'commas, without path or wildcard, got "*"'],
  [{ DATABASE_URL: 'postgres://u:p@one,two:99999/plants' },
    'DATABASE_URL: expected a host and a port up to 65535, got "two:99999"'],
  [{ DATABASE_URL: 'postgres://u:secret@h/d?sslmod=verify-full' },
    /^DATABASE_URL: expected only the parameters application_name, .*, user, got "sslmod"$/],
  [{ DATABASE_URL: 'postgres://u:secret@h/d?sslmode=verify_full' }, 'DATABASE_URL: expected sslmode to be ' +
    'one of disable, prefer, require, verify-ca, verify-full, no-verify, got "verify_full"'],
  [{ DATABASE_URL: 'postgres://u:se/cr?et@h/d' }, `${wrongUrl}, got "postgres://…@h/d"`],
  [{ DATABASE_URL: 'mysql://u:secret@h/d?password=secret' }, `${wrongUrl}, got "mysql://…@h/d?…"`],
  ...['standby', 'prefer-standby', ''].map((word): [Record<string, string>, string] => [
    { DATABASE_URL: `postgres://u:secret@h/d?target_session_attrs=${word}` },
    `DATABASE_URL: expected target_session_attrs to be one of read-write, primary, any, got "${word}"`
  ]),
  [{ DRAIN_DELAY: '20s', PORT: 'x' }, 'PORT: expected 0 to 65535, got "x"\n' +
    'SHUTDOWN_TIMEOUT: expected more than DRAIN_DELAY (20000ms), got 9000ms'],
  [{ DRAIN_DELAY: '9s' }, 'SHUTDOWN_TIMEOUT: expected more than DRAIN_DELAY (9000ms), got 9000ms'],
  [{ USER_BURST: '5' }, 'USER_BURST: expected USER_RATE to be set, too'],
  [{ JWT_ISSUER: 'https://id.example' }, 'JWT_AUDIENCE: expected a value, because JWT_ISSUER is set'],
  [{ JWT_JWKS_URL: 'https://id.example/keys' },
    'JWT_ISSUER: expected a value, because JWT_JWKS_URL is set\n' +
      'JWT_AUDIENCE: expected a value, because JWT_JWKS_URL is set']
]

t.test('each invalid value gets a line with the accepted values, and no line has a password', async (t) => {
  for (const [environment, message] of faults) t.throws(() => readConfig(environment), { message })
})
