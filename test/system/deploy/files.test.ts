import { execFile } from 'node:child_process'
import { existsSync } from 'node:fs'
import { readdir, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import '../../../src/app.ts'
import { catalogue } from '../../../src/errors.ts'
import { examplePaths } from '../../support/routes.ts'
import { runbook } from '../container/runbook.ts'

const execute = promisify(execFile)
const root = join(import.meta.dirname, '../../..')
const read = (name: string) => readFile(join(root, name), 'utf8')

t.test('Compose passes every setting of .env to the service', async (t) => {
  const service = (await read('deploy/service.yml')).split('  database:', 1)[0] as string
  const passed = new Set([...service.matchAll(/^ {6}([A-Z_]+):/gm)].map(([, name]) => name))
  // Compose does not pass these settings: the image sets HOST, Compose publishes PORT, and only the embedded
  // PostgreSQL uses DATA_DIR.
  const fixed = ['HOST', 'PORT', 'DATA_DIR']
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
  const known = new Set([...documented, ...ofService])
  const configured = new Set<string>()
  const responses = /"error":(\d{5}),"message":"(.*?)"|\/errors\/(\d{5}) "(.*?)"/g
  const files = (await readdir(join(root, 'deploy/errors'))).map((name) => `deploy/errors/${name}`)
  for (const file of [...files, 'deploy/haproxy.cfg', 'deploy/nginx.conf']) {
    for (const [, number, message, other, text] of (await read(file)).matchAll(responses)) {
      configured.add(`${number ?? other} ${message ?? text}`)
    }
  }
  t.strictSame([...configured].filter((error) => !known.has(error)), [])
  t.strictSame(documented.filter((error) => !configured.has(error)), [])
  const isOfProxies = (number: number) => number % 100 > 90
  t.notOk([...catalogue.keys()].some(isOfProxies), 'the service uses no number of the proxies')
})

t.test('the container suite runs each section of the runbook that has command lines', async (t) => {
  const files = ['runbook', 'backup', 'rolling'].map((name) => `test/system/container/${name}.test.ts`)
  const tests = await Promise.all(files.map(read))
  const run = new Set([...tests.join().matchAll(/runbook\['(.*?)'\]/g)].map(([, heading]) => heading))
  const written = Object.keys(runbook).filter((heading) => runbook[heading]?.length !== 0)
  t.strictSame([...run].sort(), written.sort())
})

const skip = !existsSync(join(root, '.git')) && 'this is not a git repository'
t.test('shell scripts keep their line ends in a checkout on Windows', { skip }, async (t) => {
  const copy = join(t.testdir(), 'copy')
  const options = ['--quiet', '--depth=1', '--config=core.autocrlf=true']
  await execute('git', ['clone', ...options, `file://${root}`, copy])
  const { stdout } = await execute('git', ['-C', copy, 'ls-files', '--eol'])
  t.strictSame(stdout.split('\n').filter((line) => /w\/(crlf|mixed)/.test(line)), [])
  t.match(stdout, /w\/lf.*deploy\/create-role\.sh/)
})
