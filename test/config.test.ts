import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import manifest from '../package.json' with { type: 'json' }
import { findMisspelledSettings, givenSettings, isOldNode } from '../src/config-checks.ts'
import { readConfig, settings, type Config } from '../src/config.ts'
import { urlForm } from '../src/database/connection-string.ts'

const names = Object.keys(settings)
const find = (...variables: string[]) =>
  findMisspelledSettings(Object.fromEntries(variables.map((name) => [name, 'x'])))

t.test('a variable that is almost called like a setting gets a warning with the setting', async (t) => {
  for (const [name, setting] of [
    ['TOKEN_CACHE_TLL', 'TOKEN_CACHE_TTL'], ['MAX_CONECTIONS', 'MAX_CONNECTIONS'],
    ['DATABSE_URL', 'DATABASE_URL'], ['DATABASE-URL', 'DATABASE_URL'], ['database_url', 'DATABASE_URL'],
    ['LOG_LEVLE', 'LOG_LEVEL'], ['PROT', 'PORT'], ['CORS_ORIGINS', 'CORS_ORIGIN'],
    ['SHUTDWON_TIMEUOT', 'SHUTDOWN_TIMEOUT'], ['JWTISSUER', 'JWT_ISSUER'],
    ['FAIL_AUTH_RATE', 'FAILED_AUTH_RATE'], ['METRIC_PORT', 'METRICS_PORT'], ['METRICS_HOTS', 'METRICS_HOST'],
    ['BDY_LIMT', 'BODY_LIMIT'], ['TOKEN_CACHE_XYL', 'TOKEN_CACHE_TTL'], ['USERRATE', 'USER_RATE'],
    ['TRUSTED_PROXY', 'TRUSTED_PROXIES']
  ] as const) t.strictSame(find(name), [`${name} is no setting: did you mean ${setting}?`])
  for (const name of names) {
    const [first, second] = [`X${name}`, name.slice(0, -1)].map((wrong) => find(wrong).join())
    for (const warning of [first, second]) t.ok(names.some((known) => warning?.endsWith(` ${known}?`)), name)
  }
  t.strictSame(find('PORTS', 'PATH', 'DOC').length, 2, 'each variable gets a line')
})

t.test('settings and variables of other programs get no warning', async (t) => {
  const usual = [
    'PATH', 'HOME', 'USER', 'USERNAME', 'USER_NAME', 'LOGNAME', 'HOSTNAME', 'HOSTTYPE', 'SHELL', 'TERM',
    'LANG', 'LC_ALL', 'TZ', 'PWD', 'OLDPWD', 'EDITOR', 'MAIL', 'TMPDIR', 'DISPLAY', 'CI', 'DEBUG',
    'LOGS', 'DATABASE', 'INVOCATION_ID', 'JOURNAL_STREAM', 'NOTIFY_SOCKET', 'MAINPID', 'HTTP_PROXY',
    'https_proxy', 'no_proxy', 'NODE_ENV', 'NODE_OPTIONS', 'NODE_EXTRA_CA_CERTS', 'NODE_COMPILE_CACHE',
    'npm_config_loglevel', 'npm_package_version', 'npm_lifecycle_event', 'INIT_CWD', 'COLOR',
    'MALLOC_MMAP_THRESHOLD_', 'PGHOST', 'PGPORT', 'PGUSER', 'PGPASSWORD', 'PGDATABASE', 'PGDATA',
    'DB_HOST', 'DB_PORT', 'REDIS_PORT', 'DATABASE_HOST', 'DATABASE_PORT', 'DATABASE_NAME',
    'DATABASE_USER', 'DATABASE_PASSWORD', 'DOCKER_HOST', 'KUBERNETES_PORT', 'KUBERNETES_SERVICE_HOST',
    'KUBERNETES_SERVICE_PORT', 'PLANT_STORE_PORT', 'PLANT_STORE_SERVICE_HOST',
    'PLANT_STORE_SERVICE_PORT', 'PLANT_STORE_PORT_3000_TCP', 'PLANT_STORE_PORT_3000_TCP_PORT',
    'METRICS_SERVICE_PORT', 'POD_NAME', 'POD_IP', 'JWT_SECRET', 'OTEL_SERVICE_NAME',
    'OTEL_RESOURCE_ATTRIBUTES', 'OTEL_EXPORTER_OTLP_HEADERS', 'OTEL_TRACES_EXPORTER',
    'OTEL_EXPORTER_OTLP_TRACES_ENDPOINT', 'OTEL_EXPORTER_OTLP_PROTOCOL', 'OTEL_LOG_LEVEL'
  ]
  const files = await Array.fromAsync(glob('{docker-compose.yml,deploy/**/*.{yml,yaml,service}}'))
  const texts = await Promise.all(files.map((file) => readFile(file, 'utf8')))
  const deployed = texts.join('\n').matchAll(/\b[A-Z][A-Z0-9]*_[A-Z0-9_]+\b/g).map(([name]) => name).toArray()
  t.ok(deployed.includes('PGBACKREST_STANZA'))
  t.strictSame(find(...names, ...usual, ...deployed), [])
})

t.test('the settings that are given have no password', async (t) => {
  t.strictSame(givenSettings({
    PATH: '/bin',
    MAX_QUEUED: '5',
    DATABASE_URL: 'postgres://u:secret@h/d',
    OTEL_EXPORTER_OTLP_ENDPOINT: 'http://u:secret@h:4318/x'
  }), { MAX_QUEUED: '5', OTEL_EXPORTER_OTLP_ENDPOINT: 'http://…@h:4318/x' })
})

t.test('versions of Node with known vulnerabilities are old', async (t) => {
  t.equal(manifest.engines.node, '^24.22.3 || >=26', 'isOldNode has the versions of `engines`')
  const old = ['20.19.0', '22.22.0', '23.1.0', '24.9.0', '24.21.0', '24.22.2', '25.9.0']
  const good = ['24.22.3', '24.22.10', '24.23.0', '24.100.0', '26.0.0', '26.10.0', '27.0.0', '100.0.0']
  t.strictSame([...old, ...good].filter((version) => isOldNode(version)), old)
})

const same = (texts: string[]) => Object.fromEntries(texts.map((text) => [text, text]))
const texts = (good: string[], ...bad: string[]) => ({ good: same(good), bad: ['', ...bad] })
const words = (...good: string[]) => texts(good, good[0] + ' ', 'X', 'true')
const integers = (min: number, max: number) => ({
  good: { [min]: min, [max]: max }, bad: ['', `${min - 1}`, `${max + 1}`, '1.5', '1e3', ' 1', '007', '0x10']
})
const durations = (good: Record<string, number>, ...bad: string[]) =>
  ({ good, bad: ['', '3', '3 s', '-1s', '1.5s', '12345678ms', 's', '3S', ...bad] })
const rates = {
  good: { '1/m': { count: 1, seconds: 60 }, '999999/s': { count: 999_999, seconds: 1 } },
  bad: ['', '0/s', '-1/s', '1.5/s', '007/s', '1000000/s', '100', '100/h', '100/1s', '100 / s', '100/S', '/s']
}
const secrets = t.testdir({ good: 'postgres://u:p@h/d\n', bad: 'postgres://u:p/w@h/d', empty: '' })
const samplers = ['always_on', 'always_off', 'traceidratio']

const values: Record<keyof Config, { good: Record<string, unknown>, bad: string[] }> = {
  HOST: texts(['0.0.0.0', '::1', 'localhost']),
  PORT: integers(0, 65535),
  REUSE_PORT: words('on', 'off'),
  DATABASE_URL: {
    good: same([
      'postgres://localhost/plants', 'postgres://%2Ftmp/d', 'postgres:///d', 'postgres://u:p%2Fw@h/d',
      'postgres://h:5432/d?user=u%40h', 'postgres://h/d?sslmode=disable', 'postgres://h/d\n'
    ]),
    bad: [
      '', 'mysql://localhost/plants', 'postgres://', 'Postgres://localhost', 'postgres://u:p/w@h/d',
      'postgres://h:port/d', 'postgres://h/d?port=99999', 'postgres://u:1?2@h/d', 'postgres://u:1#2@h/d',
      'postgres://u:p?w@h/d?sslmode=disable', 'postgres://h/d?sslmode=', 'postgres://h/d?replication=true',
      'postgres://h/d?statement_timeout=9', 'postgres://h/d?query_timeout=9', 'postgres://h/d?ssl=true',
      'postgres://h/d#x', 'postgres://h/d?user=u@h'
    ]
  },
  DATABASE_URL_FILE: {
    good: { [`${secrets}/good`]: 'postgres://u:p@h/d' }, bad: [`${secrets}/bad`, `${secrets}/empty`]
  },
  DATA_DIR: texts(['data', '/var/lib/plants']),
  MIGRATE: words('on', 'off'),
  LOG_LEVEL: words('fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'),
  LOG_REQUESTS: words('off', 'writes', 'all'),
  TRUSTED_PROXIES: texts(['loopback', 'linklocal, uniquelocal', '10.0.0.0/8', '::1', '192.168.1.1,fd00::/8'],
    '1', 'true', '10.0.0.0/33', '10.0.0.0/0', '10.0.0/8', '::1/129', '10.0.0.0/8/8', 'loopback,', 'a.test'),
  MAX_CONNECTIONS: integers(1, 99_999),
  KEEP_ALIVE_TIMEOUT: durations({ '1s': 1000, '75000ms': 75_000, '1h': 3_600_000 }, '0', '999ms', '2h'),
  BODY_LIMIT: integers(1, 131_072),
  MEMORY_BUDGET: integers(16_777_216, 1_073_741_824),
  TOKEN_CACHE_TTL: durations({ 0: 0, '0ms': 0, '999ms': 999, '4000ms': 4000, '4s': 4000 }, '5s', '4001ms'),
  WRITE_BATCH: integers(1, 9999),
  MAX_QUEUED: integers(1, 9999),
  USER_RATE: rates,
  USER_BURST: integers(1, 999_999),
  FAILED_AUTH_RATE: rates,
  CORS_ORIGIN: texts(['https://a.example', 'https://a.example, http://localhost:5173', 'http://[::1]:8080'],
    '*', 'null', 'app.example.com', 'https://', 'https://a.example/', 'https://a.example?x',
    'https://A.example', 'https://a.example:443', 'https://user@a.example', 'https://*.example.com',
    'https://a.example,', 'https://a.example https://b.example', 'ftp://a.example', 'https://ä.example'),
  STATEMENT_TIMEOUT: durations({ 0: 0, '500ms': 500, '6s': 6000 }, '7s', '6001ms', '1m'),
  DRAIN_DELAY: durations({ 0: 0, '1ms': 1, '3s': 3000 }, '2h', '1d'),
  SHUTDOWN_TIMEOUT: durations({ '3001ms': 3001, '3600000ms': 3_600_000, '1h': 3_600_000 }, '0', '3s', '2h'),
  METRICS_PORT: integers(0, 65535),
  METRICS_HOST: texts(['0.0.0.0']),
  OTEL_EXPORTER_OTLP_ENDPOINT: texts(['http://localhost:4318', 'https://traces/x'],
    'localhost:4318', 'ftp://h', 'http://', 'http://h:port', 'http://h/v1/traces', 'http://h/v1/traces/'),
  OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: texts(['http://localhost:4318/v1/traces', 'https://traces/x'],
    'localhost:4318', 'http://', 'http://h:port'),
  OTEL_EXPORTER_OTLP_PROTOCOL: words('http/json', 'http/protobuf'),
  OTEL_TRACES_SAMPLER: words(...samplers.flatMap((name) => [name, `parentbased_${name}`])),
  OTEL_TRACES_SAMPLER_ARG: {
    good: { 0: 0, 1: 1, 0.25: 0.25, '1.0': 1 }, bad: ['', '2', '1.1', '-1', '.5', '1e-3']
  },
  DOCS: words('on', 'off'),
  JWT_ISSUER: texts(['https://id.example', 'https://id.example/', 'https://id.example:8443/realms/plants',
    'http://localhost:1', 'http://127.0.0.1:9', 'http://[::1]:9/x'],
  'id.example', 'http://id.example', 'http://127.0.0.1.example', 'ftp://id.example', 'https://id.example?x',
  'https://id.example/#x', 'https://id.example/a|b', 'https://u:p@id.example', 'https://',
  ' https://id.example', 'https://id.example\n'),
  JWT_AUDIENCE: texts(['plants', 'https://plants.example']),
  JWT_JWKS_URL: texts(['https://id.example/keys?p=1', 'http://localhost/keys'],
    'http://id.example/keys', 'file:///keys', '/keys', 'https://u@id.example/keys'),
  JWT_ALGORITHMS: texts(['RS256', 'ES256, EdDSA', 'PS512,Ed25519'],
    'none', 'HS256', 'RS256,', 'RS256 ES256', 'rs256', 'RS256,none'),
  JWT_TYPE: texts(['at+jwt', 'JWT', 'none', 'at+jwt, JWT,none'], 'X', 'at+jwt,', 'AT+JWT', 'any'),
  JWT_USER_CLAIM: texts(['sub', 'https://id.example/user']),
  JWT_SCOPE_CLAIM: texts(['permissions']),
  JWT_KEYS_MAX_AGE: durations({ '20m': 1_200_000, '24h': 86_400_000, '30d': 2_592_000_000 },
    '0', '19m', '1199s', '31d', '721h', '1w')
}

// The service rejects USER_BURST without USER_RATE, and a JWT setting without an issuer and an audience.
const required = { USER_RATE: '1/s', JWT_ISSUER: 'https://id.example', JWT_AUDIENCE: 'plants' }

for (const [name, { good, bad }] of Object.entries(values)) {
  t.test(`${name} accepts its values and no others`, async (t) => {
    const read = (text: string) => readConfig({ ...required, [name]: text })
    for (const [text, value] of Object.entries(good)) t.strictSame(read(text)[name as keyof Config], value)
    for (const text of bad) {
      t.throws(() => read(text), { message: new RegExp(`^${name}: expected .*$`) }, JSON.stringify(text))
    }
  })
}

t.test('the table in docs/operating.md has every setting with its default', async (t) => {
  const document = await readFile(join(import.meta.dirname, '../docs/operating.md'), 'utf8')
  const [, table] = /\| Variable \| Default \| Values \| Meaning \|\n\|[-|]+\n(.*?)\n\n/s.exec(document) ?? []
  t.equal(table, Object.entries(settings).map(([name, { initial, values, meaning }]) => {
    // The text above the table describes the units of durations.
    const range = values.replace(' with a unit, such as 500ms or 3s', '')
    return `| \`${name}\` | ${initial === undefined ? '' : `\`${initial}\``} | ${range} | ${meaning} |`
  }).join('\n'))
})

t.test('the file of DATABASE_URL_FILE has the DATABASE_URL', (t) => {
  t.equal(readConfig({ DATABASE_URL_FILE: `${secrets}/good` }).DATABASE_URL, 'postgres://u:p@h/d')
  t.end()
})

t.test('each invalid value gets a line with the accepted values, and no line has a password', async (t) => {
  const faults: Array<[environment: Record<string, string>, message: string | RegExp]> = [
    [{ PORT: '65536', MIGRATE: 'yes', PATH: '/bin', PORTS: 'x' },
      'PORT: expected 0 to 65535, got "65536"\nMIGRATE: expected on, off, got "yes"'],
    [{ DRAIN_DELAY: '10' }, 'DRAIN_DELAY: expected 0 to 1h with a unit, such as 500ms or 3s, got "10"'],
    [{ DATABASE_URL: 'postgres://u:se/cr?et@h/d' }, `DATABASE_URL: expected ${urlForm}`],
    [{ DATABASE_URL: 'postgres://h/d', DATABASE_URL_FILE: `${secrets}/good` },
      'DATABASE_URL_FILE: expected DATABASE_URL not to be set, too'],
    [{ DATABASE_URL_FILE: '/nowhere' }, /^DATABASE_URL_FILE: ENOENT: .*'\/nowhere'$/],
    [{ DRAIN_DELAY: '20s', PORT: 'x' }, 'PORT: expected 0 to 65535, got "x"\n' +
      'SHUTDOWN_TIMEOUT: expected more than DRAIN_DELAY (20000ms), got 9000ms'],
    [{ USER_BURST: '5' }, 'USER_BURST: expected USER_RATE to be set, too'],
    [{ MAX_WAITING: '5' }, 'MAX_WAITING: this setting is now called MAX_QUEUED'],
    [{ JWT_JWKS_URL: 'https://id.example/keys' },
      'JWT_ISSUER: expected a value, because JWT_JWKS_URL is set\n' +
        'JWT_AUDIENCE: expected a value, because JWT_JWKS_URL is set']
  ]
  for (const [environment, message] of faults) t.throws(() => readConfig(environment), { message })
})
