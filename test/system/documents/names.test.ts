// Checks that what the documents name exists, and that the documents name every metric, command and option.
import { existsSync } from 'node:fs'
import { glob, readFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import '../../../src/app.ts'
import manifest from '../../../package.json' with { type: 'json' }
import { settings } from '../../../src/config.ts'
import { catalogue, statusOf } from '../../../src/errors.ts'
import { maxPathLength } from '../../../src/http/request-checks.ts'
import { attacks } from '../faults/attack-table.ts'

type Texts = Array<[path: string, text: string]>

const root = join(import.meta.dirname, '../../..')
const find = (pattern: string) =>
  Array.fromAsync(glob(pattern, { cwd: root, exclude: ['**/node_modules/**', '.data/**', '**/*lock.json'] }))
const read = async (paths: string[]): Promise<Texts> =>
  Promise.all(paths.map(async (path): Promise<Texts[0]> => [path, await readFile(join(root, path), 'utf8')]))
const map = (texts: Texts, change: (text: string) => string) =>
  texts.map(([path, text]): Texts[0] => [path, change(text)])

const documents = await read(await find('**/*.md'))
const extensions = 'ts,js,html,sh,yml,yaml,json,sql,cfg,conf,service,http,ini'
const sources = await read([
  ...await find(`**/*.{${extensions}}`), ...await find('.github/**/*.{sh,yml}'), 'Dockerfile'
])
const source = sources.map(([, text]) => text).join('\n').replaceAll(/\s+/g, ' ')
const textOf = (path: string) => new Map([...documents, ...sources]).get(path) as string
/** The changelog also has names of earlier versions. */
const current = documents.filter(([path]) => path !== 'CHANGELOG.md')

/** Returns `path: name` for each match that is not known. */
const unknown = (texts: Texts, pattern: RegExp, isKnown: (name: string) => boolean) =>
  texts.flatMap(([path, text]) => [...text.matchAll(pattern)].map(([whole, name = whole]) => name)
    .filter((name) => !isKnown(name)).map((name) => `${path}: ${name}`))

const code = map(documents, (text) => [...text.matchAll(/^```\w*\n(.*?)^```|`([^`]+)`/gms)]
  .map(([, block, inline]) => block ?? inline).join('\n'))
const linesOf = (text: string, start: RegExp) =>
  text.split('\n').filter((line) => start.test(line)).join('\n').replaceAll(/#.*/g, '')

t.ok(documents.length > 30 && sources.length > 200, 'the test reads the files of the project')

t.test('each error number in the documents is an error of the service or of a proxy', async (t) => {
  const rows = textOf('src/api-docs/description.md').match(/(?<=^\| )\d{3}91(?= \|)/gm)
  const ofProxies = (rows as string[]).map(Number)
  const numbers = [...catalogue.keys(), ...ofProxies]
  const statuses = new Set(numbers.map(statusOf))
  // Other numbers, such as 57014, are SQLSTATEs.
  const isKnown = (text: string) => numbers.includes(Number(text)) || !statuses.has(statusOf(Number(text)))
  // The changelog also has removed errors.
  t.strictSame(unknown(current, /(?<![\w.,/:#-])\d{5}(?![\w,-]|\.\d)/g, isKnown), [])
  const isStatus = (text: string) => text.startsWith(text.slice(-5, -2))
  t.strictSame(unknown(documents, /(?<!\d)\d{3} \(\d{5}(?=[),])/g, isStatus), [], 'it begins with its status')
})

t.test('each variable, option and file in the documents exists', async (t) => {
  t.strictSame(unknown(code, /\b[A-Z][A-Z\d]*_[A-Z\d_]+\b/g, (name) => source.includes(name)), [])

  // The options of this project's programs. Sentences also name options of Docker's commands, and records
  // name rejected options of Node.
  const notRecords = code.filter(([path]) => !path.startsWith('docs/design/'))
  const commands = map(notRecords, (text) =>
    linesOf(text, /^((npx )?plant-store|npm run|--)/))
  const docker = code.map(([, text]) => linesOf(text, /^docker /)).join('\n')
  const isOption = (name: string) =>
    new RegExp(`--${name}\\b`).test(source + docker) || source.includes(` ${name}: { type: `)
  t.strictSame(unknown(commands, /(?<![\w-])--([a-z][a-z-]+)/g, isOption), [])

  // `externalTrafficPolicy` is a field of Kubernetes.
  const sentences = map(documents, (text) => text.replaceAll(/^```.*?^```/gms, ''))
  const identifier = /(?<=`)(?:\w+\.)*([a-z]+[A-Z]\w*)(?=[`(.])/g
  t.strictSame(unknown(sentences, identifier, (name) =>
    source.includes(name) || name === 'externalTrafficPolicy'), [])

  const folders = 'src|test|deploy|docs|bench|dev|lint|release|examples|migrations|\\.github'
  const file = new RegExp(`(?<![\\w./$}-])(?:${folders})/[\\w./@-]*\\w(?![\\w<])`, 'g')
  // The operator adds files to deploy/ca.
  const exists = (path: string) => existsSync(join(root, path)) || path.startsWith('deploy/ca/')
  t.strictSame(unknown(code.filter(([path]) => path !== 'CHANGELOG.md'), file, exists), [])
  const document = /(?<![\w/-])(?:docs\/|SECURITY|CONTRIBUTING)[\w/-]*\.md\b/g
  t.strictSame(unknown(sources, document, exists), [], 'comments name documents that exist')
})

t.test('the documents name each metric, and no other', async (t) => {
  const writers = ['src/telemetry/metrics.ts', 'deploy/backup.sh']
  const names = writers.map(textOf).join('\n').matchAll(/(?:'|^)((?:plant_store|http)_\w+)['{ ]/gm)
  const served = new Set(names.map(([, name = '']) => name))
  t.ok(served.size > 15)
  const page: Texts = [['docs/monitoring.md', textOf('docs/monitoring.md')]]
  t.strictSame([...served].filter((name) => !page.join().includes(`\`${name}\``)), [])
  const users = ['alerts.yml', 'grafana/plant-store.json']
    .map((name): Texts[0] => [name, textOf(`deploy/observability/${name}`)])
  const isServed = (name: string) => served.has(name.replace(/_(bucket|sum|count)$/, ''))
  const metric = /(?<![\w$])(?:plant_store|http_request)s?_[a-z_]+/g
  t.strictSame(unknown([...page, ...users], metric, isServed), [])
})

t.test('the alerts, log lines and panels that the documents quote exist', async (t) => {
  const alerts = textOf('deploy/observability/alerts.yml')
  t.strictSame(unknown(current, /\bPlantStore\w+/g, (name) => alerts.includes(`alert: ${name}\n`)), [])
  const quoting = current.filter(([path]) => !/^docs\/(design\/|performance)/.test(path))
  const sentences = map(quoting, (text) =>
    text.replaceAll(/^```.*?^```|`[^`]*`|^\|.*$/gms, '').replaceAll(/\s+/g, ' '))
  // The last text is a button of GitHub.
  const isKnown = (text: string) => source.includes(text) || documents.join().includes(`# ${text}\n`) ||
    text === 'Report a vulnerability'
  t.strictSame(unknown(sentences, /"([^"]+)"/g, isKnown), [])
})

t.test('the documents name each command and option of the program', async (t) => {
  const program = textOf('src/commands/program.ts')
  const words = new Set(code.flatMap(([, text]) => text.split(/[\s|]+/)))
  const commands = [...program.matchAll(/(?:command|^transfer)\('([a-z]+)'/gm)].map(([, name = '']) => name)
  t.ok(commands.includes('erase') && commands.includes('export'))
  t.strictSame(commands.filter((name) => !words.has(name)), [])
  const options = [...program.matchAll(/(?:\.option|new Option)\('(--[a-z-]+)/g)].map(([, name = '']) => name)
  t.ok(options.includes('--unused') && options.includes('--format'))
  t.strictSame(options.filter((name) => !words.has(name)), [])
})

t.test('CONTRIBUTING.md names the suites of each push and of each night', async (t) => {
  const [, push = '', night = ''] =
    /^\[Each push\](.*?)^\[Each night\](.*?)^## /ms.exec(textOf('CONTRIBUTING.md')) ?? []
  const scriptsIn = (text: string) =>
    [...new Set(text.match(/(?<=npm (?:run )?)(?:check|fuzz|test[\w:]*)|fresh(?=\.sh)/g))]
      .map((name) => name.replace(/^fresh$/, 'test:fresh')).sort()
  t.strictSame(scriptsIn(push), scriptsIn(textOf('.github/workflows/ci.yml')))
  t.strictSame(scriptsIn(night), scriptsIn(textOf('.github/workflows/nightly.yml')))
})

t.test('each decision record has a number of its own', async (t) => {
  const records = documents.flatMap(([path, text]) => /design\/(\d+)-/.test(path) ? [{ path, text }] : [])
  const numbers = records.map(({ path }) => path.match(/\d+/)?.[0] as string)
  t.equal(new Set(numbers).size, numbers.length)
  for (const [index, { path, text }] of records.entries()) t.ok(text.startsWith(`# ${numbers[index]} `), path)
  t.strictSame(unknown(current, /\brecord (\d{3})\b/gi, (number) => numbers.includes(number)), [])
})

t.test('the documents have the defaults of settings', async (t) => {
  const inCompose = source.matchAll(/\$\{(\w+):-(\d+)\}/g)
  const defaults = new Map<string, string | undefined>(inCompose.map(([, name = '', value]) => [name, value]))
  for (const [name, { initial }] of Object.entries(settings)) defaults.set(name, initial)
  let given = 0
  for (const [path, text] of documents) {
    for (const [, name = '', value = ''] of text.matchAll(/`([A-Z_]+)` \((\d[\w ]*)\)/g)) {
      given++
      t.equal(value.replace(' ', ''), defaults.get(name), `${path}: ${name}`)
    }
  }
  t.ok(given > 0)
})

t.test('the documents have the limits and versions of the source', async (t) => {
  const has = (path: string, text: string) => t.match(textOf(path).replaceAll(/\s+/g, ' '), text, path)
  /** Returns what the first group of the pattern matches in the source. */
  const from = (path: string, pattern: RegExp) => pattern.exec(textOf(path))?.[1] as string
  for (const path of ['docs/api.md', 'docs/reliability.md', 'CHANGELOG.md']) {
    has(path, `${maxPathLength.toLocaleString('en')} characters`)
  }
  has('docs/reliability.md', `runs ${attacks.length} attacks against one instance, and ` +
    `${attacks.filter(({ onlyDirect }) => !onlyDirect).length} of them with`)
  for (const header of from('src/http/cors.ts', /expose-headers',\n +'(.*)'/).split(', ')) {
    has('docs/operating.md', `\`${header}\``)
  }
  const grace = from('deploy/service.yml', /stop_grace_period: (\d+)s/)
  const kubernetes = from('deploy/kubernetes/base/deployment.yaml', /terminationGracePeriodSeconds: (\d+)/)
  has('docs/operating.md', `these Compose files ${grace} s, the Kubernetes files ${kubernetes} s`)
  const connections = from('deploy/haproxy.cfg', /CONNECTIONS_PER_ADDRESS-(\d+)/)
  const requests = Number(from('deploy/haproxy.cfg', /REQUESTS_PER_10_SECONDS-(\d+)/)) / 10
  has('docs/operating.md', `a client address to ${connections} connections and ${requests} requests a second`)
  has('deploy/nginx.conf', `limit_conn connections ${connections};`)
  has('deploy/nginx.conf', `rate=${requests}r/s;`)

  const haproxy = from('deploy/compose/rolling.yml', /haproxy:([\d.]+)/)
  const nginx = from('test/system/container/proxies.test.ts', /nginx:([\d.]+)/)
  const pgbouncer = from('deploy/compose/pgbouncer.yml', /pgbouncer:v(\d+\.\d+)/)
  const node = from('.github/workflows/ci.yml', /node: \[(.*)\]/).replace(', ', ' and ')
  has('docs/operating.md', `Node ${node}, HAProxy ${haproxy}, nginx ${nginx} and PgBouncer ${pgbouncer}.`)
  const [, oldest = ''] = /\^(24\.\S+)/.exec(manifest.engines.node) ?? []
  has('SECURITY.md', `Use Node 26, or Node ${oldest} or later`)
  t.strictSame(unknown(documents, /Node 26, or Node (24\.\d+\.\d+)/g, (version) => version === oldest), [])
})
