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
  const fixed = { HOST: 'in the image', PORT: 'the published port', DATA_DIR: 'only the embedded database uses it' }
  // test/config.test.ts compares this table with the program's settings.
  const table = (await read('docs/operating.md')).matchAll(/^\| `([A-Z_]+)` \|/gm)
  const settings = [...table].map(([, name]) => name as string).filter((name) => !(name in fixed))
  t.ok(settings.includes('DATABASE_URL'))
  t.strictSame(settings.filter((name) => !passed.has(name)), [])
  // OpenTelemetry reads these itself.
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

t.test('each error of a proxy has the service\'s number for it, or one of the proxies\' own', async (t) => {
  const documented = [...(await read('docs/operating.md')).matchAll(/^\| (\d{3}91) \| (.*?) \|/gm)].map(([, number, message]) => `${number} ${message}`)
  const known = new Set([...documented, ...[...catalogue.values()].map(({ number, message }) => `${number} ${message}`)])
  const said = new Set<string>()
  const answers = /"error":(\d{5}),"message":"(.*?)"|\/errors\/(\d{5}) "(.*?)"/g
  const files = (await readdir(join(root, 'deploy/errors'))).map((name) => `deploy/errors/${name}`)
  for (const file of [...files, 'deploy/haproxy.cfg', 'deploy/nginx.conf']) {
    for (const [, number, message, other, text] of (await read(file)).matchAll(answers)) said.add(`${number ?? other} ${message ?? text}`)
  }
  t.strictSame([...said].filter((answer) => !known.has(answer)), [])
  t.strictSame(documented.filter((answer) => !said.has(answer)), [])
  t.notOk([...catalogue.keys()].some((number) => number % 100 > 90), 'and the service has none of theirs')
})

t.test('the container suite runs each section of the runbook that has command lines', async (t) => {
  const tests = await Promise.all(['runbook', 'backup', 'rolling'].map((name) => read(`test/system/container/${name}.test.ts`)))
  const run = new Set([...tests.join().matchAll(/runbook\['(.*?)'\]/g)].map(([, heading]) => heading))
  const written = Object.keys(runbook).filter((heading) => runbook[heading]?.length !== 0)
  t.strictSame([...run].sort(), written.sort())
})

const isCheckout = existsSync(join(root, '.git'))
t.test('a checkout on Windows has no line ends that a shell would trip over', { skip: !isCheckout && 'no repository' }, async (t) => {
  const copy = join(t.testdir(), 'copy')
  await execute('git', ['clone', '--quiet', '--depth=1', '--config=core.autocrlf=true', `file://${root}`, copy])
  const { stdout } = await execute('git', ['-C', copy, 'ls-files', '--eol'])
  t.strictSame(stdout.split('\n').filter((line) => /w\/(crlf|mixed)/.test(line)), [])
  t.match(stdout, /w\/lf.*deploy\/create-role\.sh/)
})
