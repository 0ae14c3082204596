import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { EnvironmentSchema, readConfig, type Config } from '../src/config.ts'

type Variable = keyof Config

const onOff = { good: { on: 'on', off: 'off' }, bad: ['', 'ON', 'true', '1', 'on '] }
const badDurations = ['', '3', '3 s', '-1s', '1.5s', '3h', '1d', '12345s', '12345678ms', 's', '3S']
const badCounts = ['', '0', '-1', '1.5', '1e3', ' 1', '007', '10000', '0x10']

const ports = {
  good: { 0: 0, 80: 80, 9999: 9999, 59999: 59999, 64999: 64999, 65499: 65499, 65529: 65529, 65535: 65535 },
  bad: ['', '-1', '1.5', '65536', '65540', '66000', '70000', '100000', '3000 ', '0x50', 'http']
}
const samplers = ['always_on', 'always_off', 'traceidratio']

const values: Record<Variable, { good: Record<string, unknown>, bad: string[] }> = {
  HOST: { good: { '0.0.0.0': '0.0.0.0', '::1': '::1', localhost: 'localhost' }, bad: [''] },
  PORT: ports,
  DATABASE_URL: {
    good: {
      ...Object.fromEntries(['postgres://localhost/plants', 'postgresql://u:p@h:5432/d', 'postgres://%2Ftmp/d', 'postgres:///d',
        'postgres://u:p@/d?host=/tmp', 'postgres://u:p%2Fw@h/d', 'postgres://h:5432/d?user=u@h', 'postgres://h/d?sslmode=disable',
        'postgres://h/d?uselibpqcompat=true&sslmode=require'].map((url) => [url, url])),
      'postgres://h/d?sslmode=prefer': 'postgres://h/d?sslmode=verify-full',
      'postgres://h/d?sslmode=require&x=y': 'postgres://h/d?sslmode=verify-full&x=y',
      'postgres://h/d?x=y&sslmode=verify-ca': 'postgres://h/d?x=y&sslmode=verify-full',
      'postgres://h/d?sslmode=verify-full': 'postgres://h/d?sslmode=verify-full'
    },
    bad: ['', 'localhost', 'mysql://localhost/plants', 'postgres://', 'Postgres://localhost', 'postgres://u:p/w@h/d', 'postgres://h:port/d',
      'postgres://u:1/2@h/d', 'postgres://u:1?2@h/d', 'postgres://u:1#2@h/d', 'postgres://u:p?w@h/d?sslmode=disable']
  },
  DATA_DIR: { good: { data: 'data', '/var/lib/plants': '/var/lib/plants' }, bad: [''] },
  MIGRATE: onOff,
  LOG_LEVEL: {
    good: Object.fromEntries(['fatal', 'error', 'warn', 'info', 'debug', 'trace', 'silent'].map((level) => [level, level])),
    bad: ['', 'INFO', 'verbose', '30']
  },
  TRUSTED_PROXIES: {
    good: Object.fromEntries(['loopback', 'linklocal, uniquelocal', '10.0.0.0/8', '::1', '192.168.1.1,fd00::/8'].map((value) => [value, value])),
    bad: ['', '1', 'true', 'all', '10.0.0.0/33', '10.0.0.0/0', '10.0.0/8', '::1/129', '10.0.0.0/8/8', 'loopback,', 'proxy.example']
  },
  MAX_CONNECTIONS: { good: { 1: 1, 4000: 4000, 99999: 99999 }, bad: ['', '0', '-1', '1.5', '100000'] },
  BODY_LIMIT: { good: { 1: 1, 999999: 999999, 1000000: 1000000, 1039999: 1039999, 1047999: 1047999, 1048499: 1048499, 1048569: 1048569, 1048576: 1048576 }, bad: ['', '0', '-1', '1e6', '1MB', '1048575.5', '1048577', '1048580', '1048600', '1049000', '1050000', '1100000', '2000000', '10000000'] },
  TOKEN_CACHE_TTL: {
    good: { 0: 0, '0ms': 0, '0s': 0, '1ms': 1, '999ms': 999, '4999ms': 4999, '5000ms': 5000, '1s': 1000, '5s': 5000 },
    bad: ['6s', '5001ms', '10s', '1m', ...badDurations]
  },
  WRITE_BATCH: { good: { 1: 1, 500: 500, 9999: 9999 }, bad: badCounts },
  MAX_QUEUED: { good: { 1: 1, 1000: 1000, 9999: 9999 }, bad: badCounts },
  STATEMENT_TIMEOUT: { good: { 0: 0, '0ms': 0, '500ms': 500, '5s': 5000, '5m': 300_000 }, bad: badDurations },
  DRAIN_DELAY: { good: { 0: 0, '0s': 0, '1ms': 1, '3s': 3000 }, bad: badDurations },
  SHUTDOWN_TIMEOUT: { good: { 0: 0, '9s': 9000, '9999999ms': 9_999_999, '9999m': 599_940_000 }, bad: badDurations },
  METRICS_PORT: ports,
  METRICS_HOST: { good: { '0.0.0.0': '0.0.0.0' }, bad: [''] },
  OTEL_EXPORTER_OTLP_ENDPOINT: {
    good: { 'http://localhost:4318': 'http://localhost:4318', 'https://traces/x': 'https://traces/x' },
    bad: ['', 'localhost:4318', 'ftp://h', 'http://', 'http://h:port']
  },
  OTEL_TRACES_SAMPLER: {
    good: Object.fromEntries(samplers.flatMap((name) => [name, `parentbased_${name}`]).map((name) => [name, name])),
    bad: ['', 'on', 'ALWAYS_ON', 'jaeger_remote']
  },
  OTEL_TRACES_SAMPLER_ARG: { good: { 0: 0, 1: 1, 0.25: 0.25, '1.0': 1, 0.001: 0.001 }, bad: ['', '2', '1.1', '-1', '.5', '1e-3'] },
  DOCS: onOff
}

t.test('what is absent has its default', async (t) => {
  t.strictSame(readConfig({}), {
    HOST: '127.0.0.1',
    PORT: 3000,
    DATA_DIR: '.data',
    MIGRATE: 'on',
    LOG_LEVEL: 'info',
    MAX_CONNECTIONS: 4000,
    BODY_LIMIT: 131072,
    TOKEN_CACHE_TTL: 3000,
    WRITE_BATCH: 500,
    MAX_QUEUED: 1000,
    STATEMENT_TIMEOUT: 5000,
    DRAIN_DELAY: 3000,
    SHUTDOWN_TIMEOUT: 9000,
    METRICS_HOST: '127.0.0.1',
    OTEL_TRACES_SAMPLER: 'parentbased_always_on',
    OTEL_TRACES_SAMPLER_ARG: 1,
    DOCS: 'on'
  })
})

t.test('every variable is tested here', async (t) => {
  t.strictSame(Object.keys(values), Object.keys(EnvironmentSchema.properties))
})

for (const [name, { good, bad }] of Object.entries(values)) {
  t.test(`${name} takes what it says and nothing else`, async (t) => {
    for (const [text, value] of Object.entries(good)) t.strictSame(readConfig({ [name]: text })[name as Variable], value, text)
    for (const text of bad) t.throws(() => readConfig({ [name]: text }), { message: `${name}: expected ` }, JSON.stringify(text))
  })
}

t.test('every fault has a line of its own, and the program\'s other variables are not its business', async (t) => {
  t.throws(() => readConfig({ PORT: '65536', MIGRATE: 'yes', PATH: '/bin', PORTS: 'x' }), {
    message: /^PORT: expected a port from 0 \(any free one\) to 65535, got "65536"\nMIGRATE: expected on, or off to leave migrations to the migrate command, got "yes"$/
  })
})

t.test('a fault does not show the password of a URL, but how to write it', async (t) => {
  const message = /^DATABASE_URL: expected .* with \/ as %2F and \? as %3F in a password.*, got "postgres:\/\/…@localhost\/plants"$/
  t.throws(() => readConfig({ DATABASE_URL: 'postgres://plants:se/cr?et@localhost/plants' }), { message })
  for (const word of ['standby', 'prefer-standby', 'read-only', '']) {
    t.throws(() => readConfig({ DATABASE_URL: `postgres://one,two/plants?target_session_attrs=${word}` }), {
      message: /^DATABASE_URL: expected .* its target_session_attrs read-write, primary or any,.*=\w*-?\w*"$/
    })
  }
  t.throws(() => readConfig({ DATABASE_URL: 'mysql://plants:secret@localhost/plants' }), { message: /got "mysql:\/\/…@localhost\/plants"$/ })
})

t.test('the table in docs/operating.md names every variable, its default and its meaning, in the program\'s own words', async (t) => {
  const readme = await readFile(join(import.meta.dirname, '../docs/operating.md'), 'utf8')
  const [, table = ''] = /\| Variable \| Default \| Meaning \|\n(.*?)\n\n/s.exec(readme) ?? []
  const rows = table.split('\n').slice(1).map((row) => row.split(' |').map((cell) => cell.replace(/^\|? *`?|`$/g, '')))
  const expected = Object.entries(EnvironmentSchema.properties)
    .map(([name, { default: initial = '', description }]) => [name, initial, description])
  t.strictSame(rows.map((row) => row.slice(0, 3)), expected)
})
