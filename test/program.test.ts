// Runs the program for the lines that only a process reaches. test/system/program/ has its other tests.
import { execFile, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readSync } from 'node:fs'
import { readdir, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout } from 'node:timers/promises'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify, stripVTControlCharacters } from 'node:util'
import pg from 'pg'
import t, { type Test } from 'tap'
import manifest from '../package.json' with { type: 'json' }
import { createTokens } from '../src/access/tokens.ts'
import { positiveInteger } from '../src/commands/arguments.ts'
import { printQuickStart } from '../src/commands/quick-start.ts'
import { serve as serveHere } from '../src/commands/serve.ts'
import { readConfig } from '../src/config.ts'
import { openDatabase } from '../src/database/database.ts'
import { createDatabase, sql } from './support/database.ts'
import { createDataDir, isRunning } from './support/embedded.ts'
import { freePort } from './support/free-port.ts'
import { program, run, serve, start } from './support/program.ts'
import { countPlants, ndjson, onTerminal, startImport, until } from './support/transfer.ts'

t.jobs = 2

const inParallel = { buffered: true }
const unreachable = 'postgres://127.0.0.1:1/plants'

/** Returns the URL of a database that exists only after `create`. */
async function missingDatabase (t: Test) {
  const DATABASE_URL = await createDatabase(t)
  const name = new URL(DATABASE_URL).pathname.slice(1)
  const rename = (from: string, to: string) =>
    sql(process.env.TEST_DATABASE_URL as string, `alter database ${from} rename to ${to}`)
  await rename(name, `${name}_later`)
  return { DATABASE_URL, create: () => rename(`${name}_later`, name) }
}

t.test('bad arguments get one line and exit code 2', inParallel, async (t) => {
  t.strictSame(await run(['--version']), { code: 0, stdout: `${manifest.version}\n`, stderr: '' })
  const lines: Array<[string[], string]> = [
    [['migrate', 'down'], 'error: migrate down undoes the newest migration. Add --yes to confirm.'],
    [['token', 'revoke'], 'error: expected either the id of a token or --user'],
    [['import'], 'error: expected either --all or a user of 1 to 255 printable characters']
  ]
  // The commands must fail before they connect.
  for (const [args, line] of lines) {
    t.strictSame(await run(args, { DATABASE_URL: unreachable }), { code: 2, stdout: '', stderr: `${line}\n` })
  }
  t.throws(() => positiveInteger('0'), { message: 'Expected a whole number from 1 to 999999999.' })
})

t.test('a start that cannot succeed fails with one line', async (t) => {
  const other = createServer().listen(0, '127.0.0.1')
  t.teardown(() => other.close())
  await once(other, 'listening')
  const PORT = String((other.address() as AddressInfo).port)
  const old = await createDatabase(t, { template: 'template0' })
  await sql(old, `create function public.current_setting (name text) returns text language sql
    return case name when 'server_version_num' then '140009' else pg_catalog.current_setting(name) end`)
  await sql(old, `alter database ${new URL(old).pathname.slice(1)} set search_path = public, pg_catalog`)
  const starts: Array<[Record<string, string>, RegExp]> = [
    [{ HOST: 'nowhere.invalid' }, /^HOST: expected an address or a host name, got "nowhere.invalid"$/],
    [{ HOST: '192.0.2.1' }, /^listen EADDRNOTAVAIL.* 192\.0\.2\.1$/],
    [{ PORT }, new RegExp(`^port ${PORT} on 127\\.0\\.0\\.1 is in use$`)]
  ]
  for (const [environment, message] of starts) {
    const config = readConfig({ DATABASE_URL: unreachable, PORT: '0', LOG_LEVEL: 'silent', ...environment })
    await t.rejects(serveHere(config), { message })
  }
  const stderr = 'PostgreSQL 14.9 is too old. The service needs PostgreSQL 15 or later.\n'
  t.match(await run(['serve'], { DATABASE_URL: old, PORT: '0' }), { code: 1, stderr })
  t.strictSame(await sql(old, "select from pg_tables where schemaname = 'public'"), [])
})

t.test('a shared port, debug logging by SIGUSR2, and the end by a second signal', inParallel, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const preload = join(t.testdir(), 'version.mjs')
  await writeFile(preload, 'Object.defineProperty(process.versions, "node", { value: "24.9.0" })')
  const service = await serve(t, {
    DATABASE_URL,
    REUSE_PORT: 'on',
    METRICS_PORT: '0',
    DRAIN_DELAY: '59s',
    SHUTDOWN_TIMEOUT: '1m',
    NODE_OPTIONS: `${process.env.NODE_OPTIONS} --import=${pathToFileURL(preload)}`
  })
  await service.logged('this version of Node has known security holes, use 24.22.3 or later')
  const [server] = await sql(DATABASE_URL, 'show server_version')
  const { postgresql, ...versions } = await service.logged('ready')
  t.match(versions, { version: manifest.version, node: '24.9.0' })
  t.match(server?.server_version, new RegExp(`^${postgresql}\\b`))
  t.equal((await fetch(String((await service.logged('metrics')).url))).status, 200)
  const request = async () => (await fetch(`${service.address}/plants`)).status
  service.child.kill('SIGUSR2')
  await service.logged('SIGUSR2: the log level is debug from here on')
  t.equal(await request(), 401)
  await service.logged('request completed')
  service.child.kill('SIGUSR2')
  await service.logged('SIGUSR2: the log level is info from here on')
  t.equal(await request(), 401)

  service.child.kill('SIGTERM')
  await service.logged('stopping')
  // For a second after the first signal, the service ignores further signals. So repeat the signal.
  while (service.child.exitCode === null) {
    service.child.kill('SIGTERM')
    await setTimeout(100)
  }
  t.strictSame(await service.exited, [1, null])
  t.match(service.log.at(-1), { msg: 'second SIGTERM, exiting' })
  t.equal(service.log.filter(({ msg }) => msg === 'request completed').length, 1)
})

t.test('a start waits for the database; an uncaught error ends the service', inParallel, async (t) => {
  const { DATABASE_URL, create } = await missingDatabase(t)
  const broken = join(t.testdir(), 'broken.mjs')
  await writeFile(broken, 'process.on("SIGWINCH", () => { throw new Error("a test error") })')
  const NODE_OPTIONS = `${process.env.NODE_OPTIONS} --import=${pathToFileURL(broken)}`
  const environment = { DATABASE_URL, DRAIN_DELAY: '1m', SHUTDOWN_TIMEOUT: '2m', NODE_OPTIONS }
  const service = await serve(t, environment, 'the database is not ready')
  await create()
  await service.logged('ready')
  service.child.kill('SIGWINCH')
  t.strictSame(await service.exited, [1, null])
  const err = { message: 'a test error', stack: /broken\.mjs/ }
  const lines = service.log.filter(({ msg }) => !String(msg).includes('event loop'))
  t.match(lines.slice(-2), [{ level: 'fatal', err }, { msg: 'stopped' }])
})

t.test('without DATABASE_URL the service brings its own PostgreSQL and a token', inParallel, async (t) => {
  const DATA_DIR = await createDataDir(t)
  const environment = { DATABASE_URL: undefined, DATA_DIR, DRAIN_DELAY: '0' }
  const usesEmbedded = `DATABASE_URL is not set: using the PostgreSQL server in ${DATA_DIR}\n`
  const { address, child, exited, stderr } = await serve(t, environment)
  while (!/plant_\w{57}/.test(stderr())) await once(child.stderr, 'data')
  t.match(stderr(), 'Three commands to try, with a token for the user demo that is shown only once:\n')
  const created = await run(['token', 'create', 'alice'], environment)
  t.equal(created.stderr, usesEmbedded)
  const headers = { authorization: `Bearer ${created.stdout.trim()}` }
  t.equal((await fetch(`${address}/plants`, { headers })).status, 200)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
  t.notOk(isRunning(DATA_DIR))

  const listed = await run(['token', 'list', '--json'], environment)
  t.equal(listed.stderr, usesEmbedded)
  t.match(JSON.parse(listed.stdout), [{ user: 'demo' }, { user: 'alice' }])
  t.notOk(isRunning(DATA_DIR))
})

t.test('a start with tokens names the token command', async (t) => {
  const database = openDatabase({ url: await createDatabase(t), statementTimeoutMs: 5000 })
  t.teardown(() => database.close())
  await createTokens(database).create({ user: 'alice', readOnly: false })
  const printed = t.capture(console, 'error')
  await printQuickStart(database, 'http://127.0.0.1:3000')
  t.strictSame(printed.args(), [['To create a token: npx plant-store token create <user>']])
})

t.test('on a terminal the log is readable, and Ctrl-C ends the service', inParallel, async (t) => {
  const env = { ...process.env, DATABASE_URL: await createDatabase(t), PORT: '0' }
  const terminal = spawn('script', ['-qec', `exec ${process.execPath} ${program[0]}`, '/dev/null'], { env })
  t.teardown(() => { terminal.kill('SIGKILL') })
  const closed = once(terminal, 'close')
  let shown = ''
  let isInterrupted = false
  for await (const chunk of terminal.stdout) {
    shown += chunk
    if (isInterrupted || !shown.includes('ready')) continue
    terminal.stdin.write('\x03')
    isInterrupted = true
  }
  t.strictSame(await closed, [0, null])
  // Ignore the warning that the server of `npm test` has fsync off.
  const lines = stripVTControlCharacters(shown).split('\r\n').filter((line) => !/^ {4}| WARN /.test(line))
  t.match(lines, [
    /^\[[^\]]+\] INFO \(\d+\): listening on http:\/\/127\.0\.0\.1:\d+$/,
    ...['database', 'ready', 'stopping', 'stopped'].map((text) => new RegExp(`INFO \\(\\d+\\): ${text}$`))
  ])
})

t.test('a log that nobody reads loses lines, and says how many', inParallel, async (t) => {
  const path = join(t.testdir(), 'log')
  execFileSync('mkfifo', [path])
  // Open the service's end of the pipe without O_NONBLOCK, as a shell does.
  const pipe = openSync(path, constants.O_RDWR)
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const address = `http://127.0.0.1:${await freePort()}`
  const child = spawn(program[0] as string, ['serve'], {
    env: {
      ...process.env,
      DATABASE_URL: await createDatabase(t),
      PORT: new URL(address).port,
      LOG_LEVEL: 'debug',
      DRAIN_DELAY: '0'
    },
    stdio: ['ignore', pipe, 'inherit']
  })
  const exited = once(child, 'exit')
  t.teardown(() => {
    child.kill('SIGKILL')
    closeSync(pipe)
    closeSync(reader)
  })
  const headers = { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' }
  const get = (path: string) => fetch(address + path, { headers })
  while (!await get('/readyz').then(({ ok }) => ok, () => false)) await setTimeout(50)
  // About 300 lines fill the pipe, and a further 1 MiB waits in the service.
  for (let sent = 0; sent < 5000; sent += 100) {
    await Promise.all(Array.from({ length: 100 }, () => get('/livez')))
  }
  const piece = Buffer.alloc(65_536)
  let log = ''
  while (!log.includes('"msg":"log lines were dropped"')) {
    await get('/livez')
    log += piece.toString('utf8', 0, readSync(reader, piece))
  }
  const line = log.split('\n').find((line) => line.includes('were dropped')) as string
  t.match(JSON.parse(line), { level: 'warn', dropped: /^[1-9]\d*$/ })
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('the service runs and stops after the reader of its log has gone', inParallel, async (t) => {
  const { address, child, exited } =
    await serve(t, { DATABASE_URL: await createDatabase(t), LOG_LEVEL: 'debug', DRAIN_DELAY: '0' })
  child.stdout.destroy()
  for (let index = 0; index < 3; index++) t.equal((await fetch(`${address}/livez`)).status, 200)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('a terminal shows the progress of an import, and Ctrl-C ends an import', inParallel, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const file = join(t.testdir(), 'many.ndjson')
  await writeFile(file, ndjson(10_000))
  const shown = await onTerminal(['import', 'ann', file, '--rate', '20000'], { DATABASE_URL })
  const last = /\d+ lines, \d+ a second, \d+ s left.*10000 created, 0 existing, 0 rejected\r\n$/s
  t.match(shown, { code: 0, shown: last })

  const { url, child, ended } = await startImport(t, start, ['--chunk', '1000'], ndjson(2500))
  await until(url, '(select count(*) = 2000 from plants)')
  child.kill('SIGINT')
  t.strictSame(await ended, {
    code: 130,
    stdout: '',
    stderr: 'interrupted\n2000 created, 0 existing, 0 rejected; stored up to line 2000\n'
  })
  t.equal(await countPlants(url), 2000)
})

t.test('an export ends with its reader, or by Ctrl-C without a file', inParallel, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL,
    "insert into plants (owner, id, name) select 'ann', n, repeat('n', 99) from generate_series(1, 9999) n")
  // Use bash, because some versions of sh have no pipefail.
  const head = `set -o pipefail; ${program.join(' ')} export ann | head -1`
  const env = { ...process.env, DATABASE_URL }
  const { stdout, stderr } = await promisify(execFile)('bash', ['-c', head], { env })
  t.match(stdout, /^{"id":1,"name":"n{99}"}\n$/)
  t.equal(stderr, '')

  const client = new pg.Client(DATABASE_URL)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants')
  const folder = t.testdir()
  const typed = { question: 'a second', answer: '\x03' }
  const shown = await onTerminal(['export', '--all', join(folder, 'out.csv.gz')], { DATABASE_URL }, typed)
  t.match(shown, { code: 130, shown: /0 lines, 0 a second.*interrupted\r\n$/s })
  t.strictSame(await readdir(folder), [])
})
