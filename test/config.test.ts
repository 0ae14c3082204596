import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { findConfigWarnings, readConfig, settings, type Config } from '../src/config.ts'

type Variable = keyof Config

const onOff = { good: { on: 'on', off: 'off' }, bad: ['', 'ON', 'true', '1', 'on '] }
const badDurations = ['', '3', '10', '3 s', '-1s', '1.5s', '2h', '1d', '12345s', '12345678ms', 's', '3S']
const badCounts = ['', '0', '-1', '1.5', '1e3', ' 1', '007', '10000', '0x10']

const ports = {
  good: { 0: 0, 80: 80, 9999: 9999, 59999: 59999, 64999: 64999, 65499: 65499, 65529: 65529, 65535: 65535 },
  bad: ['', '-1', '1.5', '65536', '65540', '66000', '70000', '100000', '3000 ', '0x50', 'http']
}
const rates = {
  good: {
    '1/s': { count: 1, seconds: 1 },
    '999999/s': { count: 999_999, seconds: 1 },
    '6000/m': { count: 6000, seconds: 60 }
  },
  bad: [
    '', '0/s', '-1/s', '1.5/s', '007/s', '1000000/s', '100', '100/', '100/h', '100/1s', '100 / s', '100/S',
    '/s'
  ]
}
const samplers = ['always_on', 'always_off', 'traceidratio']

const values: Record<Variable, { good: Record<string, unknown>, bad: string[] }> = {
  HOST: { good: { '0.0.0.0': '0.0.0.0', '::1': '::1', localhost: 'localhost' }, bad: [''] },
  PORT: ports,
  DATABASE_URL: {
    good: {
      ...Object.fromEntries([
        'postgres://localhost/plants', 'postgresql://u:p@h:5432/d', 'postgres://%2Ftmp/d', 'postgres:///d',
        'postgres://u:p@/d?host=/tmp', 'postgres://u:p%2Fw@h/d', 'postgres://h:5432/d?user=u@h',
        'postgres://h/d?sslmode=disable',
        'postgres://h/d?uselibpqcompat=true&sslmode=require',
        'postgres://one:5432,two/d?target_session_attrs=primary',
        'postgres://u@/d?host=/tmp,two&port=5432,5433',
        'postgres://h/d?sslrootcert=/ca.pem&options=-c%20jit%3Doff'
      ].map((url) => [url, url])),
      'postgres://h/d?sslmode=prefer': 'postgres://h/d?sslmode=verify-full',
      'postgres://h/d?sslmode=require&user=y': 'postgres://h/d?sslmode=verify-full&user=y',
      'postgres://h/d?user=y&sslmode=verify-ca': 'postgres://h/d?user=y&sslmode=verify-full',
      'postgres://h/d?sslmode=verify-full': 'postgres://h/d?sslmode=verify-full'
    },
    bad: [
      '', 'localhost', 'mysql://localhost/plants', 'postgres://', 'Postgres://localhost',
      'postgres://u:p/w@h/d', 'postgres://h:port/d',
      'postgres://u:1/2@h/d', 'postgres://u:1?2@h/d', 'postgres://u:1#2@h/d',
      'postgres://u:p?w@h/d?sslmode=disable',
      'postgres://h:99999/d', 'postgres://one,two:99999/d', 'postgres://h/d?port=99999',
      'postgres://one,two,three/d?port=1,2',
      'postgres://h/d?sslmod=verify-full', 'postgres://h/d?sslmode=bogus',
      'postgres://h/d?sslmode=verify_full', 'postgres://h/d?sslmode=',
      'postgres://h/d?replication=true', 'postgres://h/d?ssl=maybe',
      'postgres://h/d?target_session_attrs=standby', 'postgres://h/d#x'
    ]
  },
  DATA_DIR: { good: { data: 'data', '/var/lib/plants': '/var/lib/plants' }, bad: [''] },
  MIGRATE: onOff,
  LOG_LEVEL: {
    good: Object.fromEntries([
      'fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'
    ].map((level) => [level, level])),
    bad: ['', 'INFO', 'verbose', '30']
  },
  TRUSTED_PROXIES: {
    good: Object.fromEntries([
      'loopback', 'linklocal, uniquelocal', '10.0.0.0/8', '::1', '192.168.1.1,fd00::/8'
    ].map((value) => [value, value])),
    bad: [
      '', '1', 'true', 'all', '10.0.0.0/33', '10.0.0.0/0', '10.0.0/8', '::1/129', '10.0.0.0/8/8', 'loopback,',
      'proxy.example'
    ]
  },
  MAX_CONNECTIONS: { good: { 1: 1, 4000: 4000, 99999: 99999 }, bad: ['', '0', '-1', '1.5', '100000'] },
  BODY_LIMIT: {
    good: { 1: 1, 131072: 131072, 1048576: 1048576 },
    bad: ['', '0', '-1', '1e6', '1MB', '131072.5', '1048577']
  },
  MEMORY_BUDGET: {
    good: { 16777216: 16777216, 134217728: 134217728, 1073741824: 1073741824 },
    bad: ['', '16777215', '1073741825', '128MiB', '-1']
  },
  TOKEN_CACHE_TTL: {
    good: {
      0: 0, '0ms': 0, '0s': 0, '1ms': 1, '999ms': 999, '3999ms': 3999, '4000ms': 4000, '1s': 1000, '4s': 4000
    },
    bad: ['5s', '4001ms', '10s', '1m', ...badDurations]
  },
  WRITE_BATCH: { good: { 1: 1, 500: 500, 9999: 9999 }, bad: badCounts },
  MAX_QUEUED: { good: { 1: 1, 1000: 1000, 9999: 9999 }, bad: badCounts },
  USER_RATE: rates,
  USER_BURST: {
    good: { 1: 1, 500: 500, 999999: 999_999 }, bad: ['', '0', '-1', '1.5', '1e3', '1000000', '5/s']
  },
  FAILED_AUTH_RATE: rates,
  CORS_ORIGIN: {
    good: Object.fromEntries([
      'https://app.example.com', 'http://localhost:5173', 'https://a.example, https://b.example',
      'http://[::1]:8080'
    ].map((value) => [value, value])),
    bad: [
      '', '*', 'null', 'app.example.com', 'https://', 'https://a.example/', 'https://a.example/app',
      'https://a.example?x', 'https://A.example', 'HTTPS://a.example', 'https://a.example:443',
      'https://user@a.example', 'https://*.example.com', 'https://a.example,',
      'https://a.example https://b.example', 'ftp://a.example', 'file://', 'https://ä.example'
    ]
  },
  STATEMENT_TIMEOUT: {
    good: { 0: 0, '0ms': 0, '500ms': 500, '5s': 5000, '6s': 6000, '6000ms': 6000 },
    bad: ['7s', '6001ms', '1m', ...badDurations]
  },
  DRAIN_DELAY: { good: { 0: 0, '0s': 0, '1ms': 1, '3s': 3000 }, bad: badDurations },
  SHUTDOWN_TIMEOUT: {
    good: { '3001ms': 3001, '9s': 9000, '3600000ms': 3_600_000, '1h': 3_600_000 },
    bad: ['0', '3s', ...badDurations]
  },
  METRICS_PORT: ports,
  METRICS_HOST: { good: { '0.0.0.0': '0.0.0.0' }, bad: [''] },
  OTEL_EXPORTER_OTLP_ENDPOINT: {
    good: { 'http://localhost:4318': 'http://localhost:4318', 'https://traces/x': 'https://traces/x' },
    bad: ['', 'localhost:4318', 'ftp://h', 'http://', 'http://h:port']
  },
  OTEL_TRACES_SAMPLER: {
    good: Object.fromEntries(samplers.flatMap((name) =>
      [name, `parentbased_${name}`]).map((name) => [name, name])),
    bad: ['', 'on', 'ALWAYS_ON', 'jaeger_remote']
  },
  OTEL_TRACES_SAMPLER_ARG: {
    good: { 0: 0, 1: 1, 0.25: 0.25, '1.0': 1, 0.001: 0.001 }, bad: ['', '2', '1.1', '-1', '.5', '1e-3']
  },
  DOCS: onOff,
  JWT_ISSUER: {
    good: Object.fromEntries([
      'https://id.example', 'https://id.example/', 'https://id.example:8443/realms/plants',
      'http://localhost:1', 'http://127.0.0.1:9', 'http://[::1]:9/x'
    ].map((url) => [url, url])),
    bad: [
      '', 'id.example', 'http://id.example', 'http://127.0.0.1.example', 'ftp://id.example',
      'https://id.example?x', 'https://id.example/#x', 'https://id.example/a|b', 'https://u:p@id.example',
      'https://', ' https://id.example', 'https://id.example\n'
    ]
  },
  JWT_AUDIENCE: { good: { plants: 'plants', 'https://plants.example': 'https://plants.example' }, bad: [''] },
  JWT_JWKS_URL: {
    good: Object.fromEntries([
      'https://id.example/keys?p=1', 'http://localhost/keys'
    ].map((url) => [url, url])),
    bad: ['', 'http://id.example/keys', 'file:///keys', '/keys', 'https://u@id.example/keys']
  },
  JWT_ALGORITHMS: {
    good: { RS256: ['RS256'], 'ES256, EdDSA': ['ES256', 'EdDSA'], 'PS512,Ed25519': ['PS512', 'Ed25519'] },
    bad: ['', 'none', 'HS256', 'RS256,', 'RS256 ES256', 'rs256', 'RS256,none']
  },
  JWT_TYPE: { good: { 'at+jwt': 'at+jwt', JWT: 'JWT' }, bad: ['', 'jwt', 'any', 'at+JWT'] },
  JWT_USER_CLAIM: { good: { sub: 'sub', 'https://id.example/user': 'https://id.example/user' }, bad: [''] },
  JWT_SCOPE_CLAIM: { good: { permissions: 'permissions' }, bad: [''] },
  JWT_KEYS_MAX_AGE: {
    good: { '20m': 1_200_000, '24h': 86_400_000, '30d': 2_592_000_000 },
    bad: ['0', '19m', '1199s', '31d', '721h', '', '24', '1w', '-1h']
  }
}

// The service rejects a JWT setting unless both of these settings are set.
const companions = { JWT_ISSUER: 'https://id.example', JWT_AUDIENCE: 'plants' }

t.test('a setting that is not set has its default', async (t) => {
  t.strictSame(readConfig({}), {
    HOST: '127.0.0.1',
    PORT: 3000,
    DATABASE_URL: undefined,
    DATA_DIR: '.data',
    MIGRATE: 'on',
    LOG_LEVEL: 'info',
    TRUSTED_PROXIES: undefined,
    MAX_CONNECTIONS: 4000,
    BODY_LIMIT: 131072,
    MEMORY_BUDGET: 134217728,
    TOKEN_CACHE_TTL: 3000,
    WRITE_BATCH: undefined,
    MAX_QUEUED: 4000,
    USER_RATE: undefined,
    USER_BURST: undefined,
    FAILED_AUTH_RATE: undefined,
    CORS_ORIGIN: undefined,
    STATEMENT_TIMEOUT: 5000,
    DRAIN_DELAY: 3000,
    SHUTDOWN_TIMEOUT: 9000,
    METRICS_PORT: undefined,
    METRICS_HOST: '127.0.0.1',
    OTEL_EXPORTER_OTLP_ENDPOINT: undefined,
    OTEL_TRACES_SAMPLER: 'parentbased_always_on',
    OTEL_TRACES_SAMPLER_ARG: 1,
    DOCS: 'on',
    JWT_ISSUER: undefined,
    JWT_AUDIENCE: undefined,
    JWT_JWKS_URL: undefined,
    JWT_ALGORITHMS: ['RS256', 'ES256', 'EdDSA'],
    JWT_TYPE: 'at+jwt',
    JWT_USER_CLAIM: 'sub',
    JWT_SCOPE_CLAIM: undefined,
    JWT_KEYS_MAX_AGE: 86_400_000
  })
})

t.test('this file tests every setting', async (t) => {
  t.strictSame(Object.keys(values), Object.keys(settings))
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

const rejects = (t: Test, environment: Record<string, string>, message: string) =>
  t.throws(() => readConfig(environment), { message })

t.test('every invalid value gets a line, and unknown variables are ignored', async (t) => {
  rejects(t, { PORT: '65536', MIGRATE: 'yes', PATH: '/bin', PORTS: 'x' },
    'PORT: expected 0 to 65535, got "65536"\nMIGRATE: expected on, off, got "yes"')
})

t.test('the message names the accepted values with limits and units', async (t) => {
  rejects(t, { DRAIN_DELAY: '10' },
    'DRAIN_DELAY: expected 0 to 1h with a unit, such as 500ms or 3s, got "10"')
  rejects(t, { STATEMENT_TIMEOUT: '7s' },
    'STATEMENT_TIMEOUT: expected 0 to 6s with a unit, such as 500ms or 3s, got "7s"')
  rejects(t, { MEMORY_BUDGET: '1' }, 'MEMORY_BUDGET: expected 16777216 to 1073741824, got "1"')
  t.throws(() => readConfig({ BODY_LIMIT: '99999999999' }),
    { message: /^BODY_LIMIT: expected 1 to \d+, got "99999999999"$/ })
  rejects(t, { USER_RATE: '100' },
    'USER_RATE: expected 1 to 999999 a second or a minute, such as 100/s or 6000/m, got "100"')
  rejects(t, { CORS_ORIGIN: '*' }, 'CORS_ORIGIN: expected origins such as https://app.example.com, ' +
    'separated by commas, without path or wildcard, got "*"')
  rejects(t, { DATABASE_URL: 'postgres://u:p@one,two:99999/plants' },
    'DATABASE_URL: expected a host and a port up to 65535, got "two:99999"')
})

t.test('SHUTDOWN_TIMEOUT must be longer than DRAIN_DELAY', async (t) => {
  const message = 'SHUTDOWN_TIMEOUT: expected more than DRAIN_DELAY (20000ms), got 9000ms'
  rejects(t, { DRAIN_DELAY: '20s' }, message)
  rejects(t, { DRAIN_DELAY: '20s', PORT: 'x' }, `PORT: expected 0 to 65535, got "x"\n${message}`)
  t.match(readConfig({ DRAIN_DELAY: '8999ms' }), { DRAIN_DELAY: 8999 })
})

t.test('USER_BURST needs USER_RATE', async (t) => {
  rejects(t, { USER_BURST: '5' }, 'USER_BURST: expected USER_RATE to be set, too')
})

t.test('an incomplete set of JWT settings names the missing variables', async (t) => {
  rejects(t, { JWT_ISSUER: 'https://id.example' },
    'JWT_AUDIENCE: expected a value, because JWT_ISSUER is set')
  rejects(t, { JWT_AUDIENCE: 'plants' }, 'JWT_ISSUER: expected a value, because JWT_AUDIENCE is set')
  rejects(t, { JWT_JWKS_URL: 'https://id.example/keys' },
    'JWT_ISSUER: expected a value, because JWT_JWKS_URL is set\n' +
      'JWT_AUDIENCE: expected a value, because JWT_JWKS_URL is set')
  t.match(readConfig(companions), companions)
})

t.test('unknown parameters of DATABASE_URL and unknown values are rejected by name', async (t) => {
  const rejectsParameter = (parameter: string, message: string | RegExp) =>
    t.throws(() => readConfig({ DATABASE_URL: `postgres://u:secret@h/d?${parameter}` }), { message })
  rejectsParameter('sslmod=verify-full',
    /^DATABASE_URL: expected only the parameters application_name, .*, user, got "sslmod"$/)
  rejectsParameter('channel_binding=require', /got "channel_binding"$/)
  rejectsParameter('sslmode=verify_full',
    'DATABASE_URL: expected sslmode to be one of disable, prefer, require, verify-ca, verify-full, ' +
      'no-verify, got "verify_full"')
  for (const word of ['standby', 'prefer-standby', 'read-only', '']) {
    rejectsParameter(`target_session_attrs=${word}`,
      `DATABASE_URL: expected target_session_attrs to be one of read-write, primary, any, got "${word}"`)
  }
})

t.test('a message about DATABASE_URL hides the password and explains its escapes', async (t) => {
  const expected = 'DATABASE_URL: expected postgres://user:password@host:port/database, with / as %2F and ' +
    '? as %3F in the password, got'
  rejects(t, { DATABASE_URL: 'postgres://plants:se/cr?et@localhost/plants' },
    `${expected} "postgres://…@localhost/plants"`)
  rejects(t, { DATABASE_URL: 'mysql://plants:secret@localhost/plants?password=secret' },
    `${expected} "mysql://…@localhost/plants?…"`)
})

t.test('MAX_WAITING is a former name of MAX_QUEUED', async (t) => {
  t.match(readConfig({ MAX_WAITING: '7' }), { MAX_QUEUED: 7 })
  t.match(readConfig({ MAX_WAITING: '7', MAX_QUEUED: '8' }), { MAX_QUEUED: 8 })
  rejects(t, { MAX_WAITING: '0' }, 'MAX_WAITING: expected 1 to 9999, got "0"')
  t.strictSame(findConfigWarnings({ MAX_WAITING: '7' }),
    ['MAX_WAITING is now called MAX_QUEUED; the old name works until the next version.'])
})

t.test('variables within two edits of a setting get a warning', async (t) => {
  for (const [name, setting] of Object.entries({
    DATABSE_URL: 'DATABASE_URL',
    DATABASE_ULR: 'DATABASE_URL',
    DATABASEURL: 'DATABASE_URL',
    SHUTDOWN_TIMEOUTS: 'SHUTDOWN_TIMEOUT',
    PORTS: 'PORT'
  })) {
    const warnings = [`${name} is not a setting and has no effect. Did you mean ${setting}?`]
    t.strictSame(findConfigWarnings({ [name]: 'x' }), warnings, name)
  }
  t.strictSame(findConfigWarnings({
    HOME: '/root',
    PATH: '/bin',
    PWD: '/',
    HOSTNAME: 'x',
    PGPORT: '5432',
    DATABASE_PASSWORD: 'x',
    METRICS_PORT: '0',
    METRICS_HOST: '::1'
  }), [], 'other variables get no warning')
  t.strictSame(findConfigWarnings({ DATABASE_URL: 'x', DATABASE_URL2: 'y' }), [],
    'a similar variable gets no warning when the setting is set')
})

t.test('the table in docs/operating.md matches the settings', async (t) => {
  const document = await readFile(join(import.meta.dirname, '../docs/operating.md'), 'utf8')
  const [, table = ''] =
    /\| Variable \| Default \| Values \| Meaning \|\n\|[-|]+\n(.*?)\n\n/s.exec(document) ?? []
  t.equal(table, Object.entries(settings).map(([name, { initial, values, meaning }]) =>
    `| \`${name}\` | ${initial === undefined ? '' : `\`${initial}\``} | ${values} | ${meaning} |`).join('\n'))
})
