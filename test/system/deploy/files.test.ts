import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import '../../../src/app.ts'
import { ownedTables } from '../../../src/commands/users.ts'
import { catalogue } from '../../../src/errors.ts'
import { examplePaths, guardedRoutes } from '../../support/routes.ts'

const root = join(import.meta.dirname, '../../..')
const read = (name: string) => readFile(join(root, name), 'utf8')

t.test('Compose passes every setting of .env to the service', async (t) => {
  const service = (await read('deploy/service.yml')).split('  database:', 1)[0] as string
  const passed = new Set([...service.matchAll(/^ {6}([A-Z_]+):/gm)].map(([, name]) => name))
  // Compose does not pass these settings: the image sets HOST, Compose publishes PORT, containers do not
  // share a port, and only the embedded PostgreSQL uses DATA_DIR.
  const fixed = ['HOST', 'PORT', 'REUSE_PORT', 'DATA_DIR']
  // test/config.test.ts checks that the table of docs/operating.md has all settings.
  const table = (await read('docs/operating.md')).matchAll(/^\| `([A-Z_]+)` \|/gm)
  const settings = [...table].map(([, name]) => name as string).filter((name) => !fixed.includes(name))
  t.ok(settings.includes('DATABASE_URL'))
  t.strictSame(settings.filter((name) => !passed.has(name)), [])
  // docs/monitoring.md names the settings that the OpenTelemetry library reads.
  const named: string[] = (await read('docs/monitoring.md')).match(/\bOTEL_\w+/g) ?? []
  t.ok(named.includes('OTEL_EXPORTER_OTLP_HEADERS'))
  t.strictSame(named.filter((name) => !passed.has(name)), [])
})

t.test('Prometheus and HAProxy know every instance', async (t) => {
  const instances = (await read('deploy/compose/rolling.yml')).match(/(?<=^ {2})\S+(?=: \*instance$)/gm) ?? []
  t.equal(instances.length, 3)
  const scraped = /names: \[(.*?)\]/.exec(await read('deploy/observability/prometheus.yml'))?.[1]
  t.strictSame(scraped?.split(', '), ['plant-store', ...instances])
  const servers = (await read('deploy/haproxy.cfg')).match(/(?<=^ {2}server \w+ )[^:]+/gm)
  t.strictSame(servers, [...instances, ...instances], 'in the backends "ready" and "living"')
})

t.test('nginx names the methods of each path in its own 405', async (t) => {
  const map = /map \$request_uri \$methods \{(.*?)\}/s.exec(await read('deploy/nginx.conf'))?.[1] as string
  const [fallback, ...rows] = [...map.matchAll(/(\S+) "(.*)";/g)]
  for (const [path, methods] of Object.entries(examplePaths)) {
    const row = rows.find(([, pattern = '']) => new RegExp(pattern.slice(2, -1)).test(path)) ?? fallback
    t.equal(row?.[2], methods, path)
  }
})

t.test('each error of a proxy has a number of the service or of the documented proxy errors', async (t) => {
  const rows = (await read('docs/operating.md')).matchAll(/^\| (\d{3}91) \| (.*?) \|/gm)
  const documented = [...rows].map(([, number, message]) => `${number} ${message}`)
  const ofService = [...catalogue.values()].map(({ number, message }) => `${number} ${message}`)
  const files = (await readdir(join(root, 'deploy/errors'))).map((name) => `deploy/errors/${name}`)
  const texts = await Promise.all([...files, 'deploy/haproxy.cfg', 'deploy/nginx.conf'].map(read))
  const responses = texts.join('\n').matchAll(/"error":(\d{5}),"message":"(.*?)"|\/errors\/(\d{5}) "(.*?)"/g)
  const configured = [...responses].map(([, number, message, other, text]) =>
    `${number ?? other} ${message ?? text}`)
  t.strictSame(configured.filter((error) => ![...documented, ...ofService].includes(error)), [])
  t.strictSame(documented.filter((error) => !configured.includes(error)), [])
})

t.test('the runbook of each alert is a section of docs/monitoring.md', async (t) => {
  const sections = [...(await read('docs/monitoring.md')).matchAll(/^### (.*)$/gm)]
    .map(([, heading = '']) => `docs/monitoring.md#${heading.toLowerCase().replaceAll(' ', '-')}`)
  const runbooks = [...(await read('deploy/observability/alerts.yml')).matchAll(/runbook: (\S+)/g)]
    .map(([, runbook]) => runbook as string)
  t.strictSame([...new Set(runbooks)].sort(), sections.sort())
})

t.test('deployments and documents name each table with an owner, and alerts watch each domain', async (t) => {
  const grant = `grant select, insert, update, delete on ${[...ownedTables, 'tokens'].join(', ')}\``
  t.match(await read('docs/operating.md'), grant)
  const citus = await read('deploy/compose/citus.yml')
  for (const table of ownedTables) t.match(citus, `create_distributed_table('${table}', 'owner')`)
  const monitored = `${await read('deploy/observability/alerts.yml')}
    ${await read('deploy/observability/grafana/plant-store.json')}`
  for (const [, pattern = ''] of monitored.matchAll(/route=~\\?"(.*?)\\?"/g)) {
    for (const route of Object.keys(guardedRoutes)) t.match(route, new RegExp(`^(${pattern})$`))
  }
})
