// Checks the links and the diagram of the documents, runs their commands, and starts the service as they say.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { access, readdir, readFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { startApp } from '../../support/app.ts'
import { createDatabase } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { matchEach } from '../../support/match.ts'
import { hasEnded } from '../../support/processes.ts'
import { asShipped, program } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const read = (file: string) => readFile(join(root, file), 'utf8')

const runHere = /^(plant-store|npx plant-store|curl localhost:3000)\b/

/** Returns the shell lines of a document, and the commands quoted in its sentences. */
function commandsIn (text: string): string[] {
  const blocks = [...text.matchAll(/^```sh\n(.*?)^```|^ {4}(\S[^\n]*)$/gms)]
    .map(([, lines, line]) => lines ?? line as string)
  // A line that ends with \ or | continues on the next line.
  const lines = blocks.flatMap((block) => block.replaceAll(/\\\n\s*|(?<=\|)\n\s*/g, ' ').split('\n'))
  const inline = text.replaceAll(/^```.*?^```/gms, '').matchAll(/`([^`]+)`/g)
  return [...lines, ...[...inline].map(([, code = '']) => code)]
    .map((line) => line.replace(/\s+#.*/, '').replaceAll(/\s+/g, ' ').trim())
    .filter((line) => runHere.test(line) && line.includes(' '))
}

const inDocs = (await readdir(join(root, 'docs'), { recursive: true })).filter((name) => name.endsWith('.md'))
const besideFiles = ['deploy/citus.md', 'deploy/kubernetes/README.md']
const documents = ['README.md', 'CONTRIBUTING.md', 'SECURITY.md', ...inDocs.map((name) => `docs/${name}`),
  ...besideFiles]
const texts = await Promise.all(documents.map(read))
const commands = new Set(texts.flatMap(commandsIn))
const DATABASE_URL = await createDatabase(t)
const [, entryPoint = ''] = /^ENTRYPOINT (.*)$/m.exec(await read('Dockerfile')) ?? []
const unit = (await read('deploy/plant-store@.service'))
  .replaceAll(/\\\n/g, ' ').replaceAll('/opt/plant-store', root)
const [, execStart = ''] = /^ExecStart=(.*)$/m.exec(unit) ?? []
const link = join(t.testdir({ 'plant-store': t.fixture('symlink', program[0] as string) }), 'plant-store')
const [, ...options] = (await read('src/main.ts')).split('\n', 1)[0]?.split(/ (?=--)/) as string[]
t.ok(options.length > 0, 'the first line of src/main.ts has options of V8')

t.test('every link leads to a file or a heading of the project, and every npm script exists', async (t) => {
  const headingsOf = (text: string) => [...text.matchAll(/^#+ (.*)/gm)]
    .map(([, heading = '']) => heading.toLowerCase().replaceAll(/[^\w\- ]/g, '').replaceAll(' ', '-'))
  const broken: string[] = []
  for (const document of [...documents, 'CHANGELOG.md', 'src/api-docs/description.md']) {
    const links = (await read(document)).matchAll(/\]\((?!https?:)([^)#]*)#?([^)]*)\)/g)
    for (const [, path = '', anchor] of links) {
      const target = path === '' ? document : join(dirname(document), path)
      const exists = anchor
        ? read(target).then((text) => headingsOf(text).includes(anchor))
        : access(join(root, target)).then(() => true)
      if (!await exists.catch(() => false)) broken.push(`${document}: ${path}#${anchor}`)
    }
  }
  t.strictSame(broken, [])
  const scripts = texts.join().matchAll(/npm run ([\w:]+)/g)
  for (const [, script = ''] of scripts) t.ok(script in manifest.scripts, script)
})

t.test('the diagram of the README shows the imports of src', async (t) => {
  const [, diagram = ''] = /^```mermaid\n(.*?)^```/ms.exec(await read('README.md')) ?? []
  const drawn = [...diagram.matchAll(/^ +(.*) --> (.*)/gm)].flatMap(([, left = '', right = '']) =>
    left.split(' & ').flatMap((from) => right.split(' & ').map((to) => `${from} ${to}`)))
    .filter((arrow) => arrow !== 'database PostgreSQL[(PostgreSQL)]')
  const parts = new Set(drawn.flatMap((arrow) => arrow.split(' ')))
  const imports = new Set<string>()
  const files = await readdir(join(root, 'src'), { recursive: true })
  // The diagram has the folder of plants. Its arrows hold for the folder of each domain.
  const domains = (await read('src/domains.ts')).matchAll(/from '\.\/(\w+)\/routes\.ts'/g)
  const ofDomains = [...domains].map(([, folder = '']) => folder)
  const partOf = (path: string) => {
    const [first = ''] = path.split('/', 1)
    return ofDomains.includes(first) ? 'plants' : first
  }
  for (const file of files) {
    const part = partOf(file)
    if (!file.endsWith('.ts') || !parts.has(part)) continue
    for (const [, path = ''] of (await read(`src/${file}`)).matchAll(/(?:from |import\()'(\..+?)'/g)) {
      const target = join('src', dirname(file), path)
      const imported = target.startsWith('src/') ? partOf(target.replace('src/', '')) : part
      if (imported !== part && parts.has(imported)) imports.add(`${part} ${imported}`)
    }
  }
  t.strictSame(drawn.filter((arrow) => !imports.has(arrow)), [], 'each arrow is an import')
  const leadsTo = (from: string, to: string): boolean => drawn.some((arrow) => {
    const [start, end = ''] = arrow.split(' ')
    return start === from && (end === to || leadsTo(end, to))
  })
  const missing = [...imports].filter((arrow) => !leadsTo(...arrow.split(' ') as [string, string]))
  t.strictSame(missing, [], 'each import is an arrow, or follows from several arrows')
  const folders = files.filter((file) => file.includes('/')).map(partOf)
  t.strictSame(folders.filter((name) => !parts.has(name)), [], 'each folder is in the diagram')
})

t.test('the commands of the documents succeed', async (t) => {
  const { url, tokens, as, listen } = await startApp(t)
  await tokens.create({ user: 'bob', readOnly: false })
  const [bobs] = await tokens.list('bob')
  const address = await listen()
  // Commands in docs/data.md import these files, and a command in docs/operating.md reads the token.
  const folder = t.testdir({
    'plants.csv': 'id,name\n41,Fern\n',
    'token.txt': await tokens.create({ user: 'erin', readOnly: false }),
    'everything.ndjson.gz': gzipSync('{"user":"dave","id":1,"name":"Oak"}\n')
  })
  const TOKEN = (await as('carol')).authorization.replace('Bearer ', '')
  const env = { ...process.env, DATABASE_URL: url, TOKEN_CACHE_TTL: '0', TOKEN }
  const responses: string[] = []
  for (const command of commands) {
    const line = command.replace('<id>', bobs?.id as string).replace('<user>', 'bob')
      // Run the program without npx, because npx takes two seconds. Another test covers npx.
      .replace(/^(npx )?plant-store/, program.join(' '))
      .replace('localhost:3000', `--silent --show-error --fail ${address}`)
    const done = promisify(execFile)('env', [...asShipped, 'sh', '-c', line], { cwd: folder, env })
    await t.resolves(done, command)
    if (command.startsWith('curl')) responses.push((await done).stdout)
  }
  matchEach(t, await tokens.list('alice'),
    [{ label: 'laptop' }, { label: 'dashboard', readOnly: true }, { expires: Date }])
  matchEach(t, await tokens.list('bob'), [{ revoked: Date }])
  t.strictSame(responses, ['{"name":"Monstera"}', '[{"name":"Monstera"}]', ''])
})

/** `npm run dev` needs Node's own options and does without V8's. Ctrl-C reaches both npm and the service. */
const ways: Array<[way: string, words: string[], isCtrlC?: boolean]> = [
  ['npm start', ['npm', 'start']],
  ['npm start and Ctrl-C', ['npm', 'start'], true],
  ['npm run dev', ['npm', 'run', 'dev']],
  ['a link to src/main.ts, as npx and the image have one', [link]],
  ['the entry point of the image', JSON.parse(entryPoint.replace('/app', root))],
  ['the systemd unit', execStart.replace('%i', '0').split(' ')]
]

for (const [way, words, isCtrlC = false] of ways) {
  t.test(`started by ${way}, the service has V8's options and ends with its parent`, async (t) => {
    const env = { ...process.env, DATABASE_URL, PORT: '0', DRAIN_DELAY: '0' }
    const child = spawn('env', [...asShipped, ...words],
      { cwd: root, env, stdio: ['ignore', 'pipe', 'inherit'], detached: true })
    const group = -(child.pid as number)
    // If the test fails early, kill the whole process group.
    t.teardown(() => { if (!hasEnded(child)) process.kill(group, 'SIGKILL') })
    const exited = once(child, 'exit')
    const pids: Record<string, number> = {}
    for await (const line of createInterface(child.stdout)) {
      // npm prints lines that are not JSON.
      if (!line.startsWith('{')) continue
      const { msg, pid } = JSON.parse(line)
      pids[msg] = pid
      if (msg !== 'ready') continue
      const commandLine = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0')
      const missing = options.filter((option) => !commandLine.includes(option))
      t.strictSame(missing, way === 'npm run dev' ? options : [])
      if (isCtrlC) process.kill(group, 'SIGINT')
      else child.kill('SIGTERM')
    }
    t.type(pids.ready, 'number')
    t.equal(pids.stopped, pids.ready)
    await exited
    t.throws(() => process.kill(pids.ready as number, 0), { code: 'ESRCH' }, 'no process is left')
  })
}

t.test('the start of the systemd unit ends when the process is ready, or has ended', async (t) => {
  const port = String(await freePort())
  const lines = unit.replaceAll('%i', port)
  const settings = [...lines.matchAll(/^Environment=(.*)$/gm)].flatMap(([, words = '']) => words.split(' '))
  const env = Object.fromEntries(settings.map((setting) => setting.split(/=(.*)/s)))
  // Some machines have Node elsewhere.
  env.PATH += `:${dirname(process.execPath)}`
  // The file of settings may have those of a container. It replaces the variables of Environment.
  Object.assign(env, { METRICS_HOST: '127.0.0.2', METRICS_PORT: '9464' })
  Object.assign(env, { DATABASE_URL, PORT: '0', NODE_COMPILE_CACHE: '', DRAIN_DELAY: '0' })
  const [, execStartPost = ''] = /^ExecStartPost=(.*)$/m.exec(lines) ?? []
  const command = execStart.replace('%i', port)
  const service = spawn('sh', ['-c', `exec ${command}`], { env, stdio: ['ignore', 'pipe', 'inherit'] })
  t.teardown(() => service.kill('SIGKILL'))
  env.MAINPID = String(service.pid)
  await t.resolves(promisify(execFile)('sh', ['-c', execStartPost], { env }))
  const metrics = await (await fetch(`http://127.0.0.2:${port}/metrics`)).text()
  t.match(metrics, 'plant_store_unready{reason="starting"} 0')
  const exited = once(service, 'exit')
  service.kill('SIGTERM')
  await exited
  await t.rejects(promisify(execFile)('sh', ['-c', execStartPost], { env }), /ESRCH/)
})
