import { glob, readFile } from 'node:fs/promises'
import t from 'tap'
import manifest from '../package.json' with { type: 'json' }
import { settings } from '../src/config.ts'
import { findMisspelledSettings, givenSettings, isOldNode } from '../src/config-checks.ts'

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
