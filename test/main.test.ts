// Runs the program for the lines that only a process reaches. test/system/program/ has its other tests.
import { execFile, spawn } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { existsSync } from 'node:fs'
import { readdir, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { setImmediate as nextTick, setTimeout } from 'node:timers/promises'
import { networkInterfaces } from 'node:os'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { promisify, stripVTControlCharacters } from 'node:util'
import t from 'tap'
import manifest from '../package.json' with { type: 'json' }
import { formatError } from '../src/commands/format.ts'
import { openLogStream } from '../src/commands/log-stream.ts'
import { serve as serveHere } from '../src/commands/serve.ts'
import { createToken, listTokens } from '../src/commands/tokens.ts'
import { readConfig } from '../src/config.ts'
import { migrate } from '../src/database/migrate.ts'
import { createDatabase, openSession, sql, waitingForLocks } from './support/database.ts'
import { createDataDir, isRunning } from './support/embedded.ts'
import { matchEach } from './support/match.ts'
import { hasEnded } from './support/processes.ts'
import { program, serve, start, startedBy, unmeasured, type Program } from './support/program.ts'
import { countPlants, ndjson } from './support/transfer.ts'

t.jobs = 2

const inParallel = { buffered: true }
const unreachable = 'postgres://127.0.0.1:1/plants'

/** For a second after the first signal, the service ignores further signals. So repeats the signal. */
async function end ({ child }: Program): Promise<void> {
  while (!hasEnded(child)) {
    child.kill('SIGTERM')
    await setTimeout(100)
  }
}

t.test('a start or migration that cannot succeed fails with the reason', async (t) => {
  const other = createServer().listen(0, '127.0.0.1')
  t.teardown(() => other.close())
  await once(other, 'listening')
  const PORT = String((other.address() as AddressInfo).port)
  const old = await createDatabase(t, { template: 'template0' })
  const pretend = (setting: string, value: string) => sql(old,
    `create or replace function public.current_setting (name text) returns text language sql
      return case name when '${setting}' then '${value}' else pg_catalog.current_setting(name) end`)
  await pretend('server_version_num', '140009')
  await sql(old, `alter database ${new URL(old).pathname.slice(1)} set search_path = public, pg_catalog`)
  const startHere = (environment: Record<string, string>) =>
    serveHere(readConfig({ DATABASE_URL: unreachable, PORT: '0', LOG_LEVEL: 'silent', ...environment }))
  await t.rejects(startHere({ DATABASE_URL: old }),
    { message: 'PostgreSQL 14.9 is too old. The service needs PostgreSQL 15 or later.' })
  await pretend('server_encoding', 'LATIN1')
  for (const [environment, message] of [
    [{ HOST: 'nowhere.invalid' }, /^getaddrinfo .* nowhere.invalid$/],
    [{ HOST: '192.0.2.1' }, /^listen EADDRNOTAVAIL.* 192\.0\.2\.1$/],
    [{ PORT }, new RegExp(`^listen EADDRINUSE: address already in use 127\\.0\\.0\\.1:${PORT}$`)],
    [{ DATABASE_URL: old }, 'The encoding of the database is LATIN1. The service needs UTF8.']
  ] as const) await t.rejects(startHere(environment), { message })
  await t.rejects(migrate(old), { message: /^The encoding .* LATIN1/ })
  const DATA_DIR = join(t.testdir(), 'data')
  const error = await serveHere(readConfig({ DATA_DIR, PORT })).catch((error) => error)
  t.match(formatError(error),
    /^listen EADDRINUSE.*\. Set PORT to a free port, or METRICS_PORT for the metrics\.$/)
  t.notOk(existsSync(DATA_DIR), 'the service looks at the port before it creates a database')
  t.strictSame(await sql(old, "select from pg_tables where schemaname = 'public'"), [])
})

t.test('a shared port, debug logging by SIGUSR2, and the end by a second signal', inParallel, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const service = await serve(t, {
    DATABASE_URL,
    REUSE_PORT: 'on',
    METRICS_PORT: '0',
    STATEMENT_TIMEOUT: '0',
    DRAIN_DELAY: '59s',
    SHUTDOWN_TIMEOUT: '1m'
  })
  const { host, username, password } = new URL(DATABASE_URL)
  t.match(await service.logged('database'), { servers: [host] })
  t.match(await service.logged('the role lacks settings'), { missing: ['statement_timeout'] })
  const [server] = await sql(DATABASE_URL, 'show server_version')
  const { postgresql, ...versions } = await service.logged('ready')
  t.match(versions, { version: manifest.version, node: process.versions.node })
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
  await end(service)
  t.strictSame(await service.exited, [1, null])
  t.match(service.log.at(-1), { msg: 'second SIGTERM, exiting' })
  t.notMatch(JSON.stringify(service.log), `${username}:${password}@`)
  t.equal(service.log.filter(({ msg }) => msg === 'request completed').length, 1)
})

t.test('a start waits for the database and a dump; a signal or an error ends it', inParallel, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL, "delete from migrations where name = '0004_username_collation'")
  // pg_dump holds this lock on each table.
  const dump = await openSession(t, DATABASE_URL, 'begin; lock table tokens in access share mode')
  const admit = (isAdmitted: boolean) => sql(process.env.TEST_DATABASE_URL as string,
    `alter database ${new URL(DATABASE_URL).pathname.slice(1)} allow_connections ${isAdmitted}`)
  await admit(false)
  const broken = join(t.testdir(), 'broken.mjs')
  await writeFile(broken, `process.on('SIGWINCH', () => { throw new Error('a test error') })
    Object.defineProperty(process, 'versions', { value: { ...process.versions, node: '24.21.0' } })`)
  const environment = {
    DATABASE_URL,
    HOST: '::',
    MAX_CONNECTIONS: '901',
    DRAIN_DELAY: '1m',
    SHUTDOWN_TIMEOUT: '2m',
    NODE_OPTIONS: `${process.env.NODE_OPTIONS} --import=${pathToFileURL(broken)}`
  }
  const failure = 'the database is not ready'
  const limited = startedBy(['sh', '-c', 'ulimit -n 1000; exec "$0" "$@"', ...program])
  const service = await limited.serve(t, environment, failure)
  const failures = () => service.log.map(({ msg }) => String(msg)).filter((msg) => msg.startsWith(failure))
  while (failures().length < 2) await setTimeout(10)
  t.strictSame(failures().slice(0, 2), [100, 200].map((ms) => `${failure}, next attempt in ${ms} ms`))
  t.match(service.log[0], { level: 'warn', node: '24.21.0', msg: /see SECURITY\.md$/ })
  t.match(service.log[1], { level: 'warn', descriptors: 1000, msg: /^too few file descriptors \(ulimit/ })
  const addresses = Object.values(networkInterfaces()).flatMap((all) => all ?? [])
  for (const { address: host, family } of addresses.filter(({ internal }) => internal)) {
    const hostname = family === 'IPv6' ? `[${host}]` : host
    t.equal((await fetch(Object.assign(new URL('/livez', service.address), { hostname }))).status, 200, host)
  }
  const stopped = await serve(t, environment, failure)
  stopped.child.kill('SIGTERM')
  await stopped.logged('stopping')

  await admit(true)
  const { child, ended } = unmeasured.start(['migrate'], { DATABASE_URL })
  await Promise.all([once(child.stderr, 'data'), service.logged('the migration waits for a lock')])
  t.strictSame(await sql(DATABASE_URL, 'select from tokens'), [], 'no statement waits for the migration')
  await dump.query('commit')
  const { code, stdout, stderr } = await ended
  t.equal(code, 0)
  t.match(stderr, /^(The migration waits for a lock of another session, such as pg_dump\.\n)+$/)
  await service.logged('ready')
  const isMigrated = [service, stopped].some(({ log }) => log.some(({ msg }) => msg === 'migrated'))
  t.equal(stdout, isMigrated ? 'nothing to do\n' : 'up 0004_username_collation\n')
  // The probe, the last step of a start, opens a second connection. Wait for both processes.
  const connections = `select from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database()`
  while ((await sql(DATABASE_URL, connections)).length < 4) await setTimeout(10)
  service.child.kill('SIGWINCH')
  t.strictSame(await service.exited, [1, null])
  const err = { message: 'a test error', stack: /broken\.mjs/ }
  t.match(service.log.slice(-2), [{ level: 'fatal', err }, { msg: 'stopped' }])
  await end(stopped)
  t.strictSame(await stopped.exited, [1, null])
  t.notOk(stopped.log.some(({ msg }) => msg === 'ready'))
})

t.test('without DATABASE_URL the service brings its own PostgreSQL and a token', inParallel, async (t) => {
  const DATA_DIR = await createDataDir(t)
  const environment = { DATABASE_URL: undefined, DATA_DIR, DRAIN_DELAY: '0' }
  const usesEmbedded = `DATABASE_URL is not set: using the PostgreSQL server in ${DATA_DIR}`
  const unused = 'No service uses this folder now. If your service runs, give the command the DATA_DIR or ' +
    'DATABASE_URL of the service.'
  const { child, exited } = await serve(t, environment)
  const config = readConfig({ DATA_DIR })
  const printed = t.capture(console, 'log')
  const notes = t.capture(console, 'error')
  await createToken(config, { user: 'alice', readOnly: false })
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
  t.notOk(isRunning(DATA_DIR))

  await listTokens(config, { json: false })
  t.match(printed.args(), [[/^plant_/], [/^ID .*\n\w+ +demo .*\n\w+ +alice /]])
  t.strictSame(notes.args(), [[usesEmbedded], [usesEmbedded], [unused]])
  t.notOk(isRunning(DATA_DIR))
})

t.test('on a terminal the log is readable, and Ctrl-C ends the service', inParallel, async (t) => {
  const env = { ...process.env, DATABASE_URL: await createDatabase(t), PORT: '0' }
  const terminal = spawn('script', ['-qec', `exec ${process.execPath} ${program[0]}`, '/dev/null'], { env })
  t.teardown(() => { terminal.kill('SIGKILL') })
  const closed = once(terminal, 'close')
  let shown = ''
  terminal.stdout.on('data', (chunk) => { shown += chunk })
  while (!shown.includes('ready')) await once(terminal.stdout, 'data')
  terminal.stdin.write('\x03')
  t.strictSame(await closed, [0, null])
  // Ignore the warning that the server of `npm test` has fsync off.
  const lines = stripVTControlCharacters(shown).split('\r\n').filter((line) => !/^ {4}| WARN /.test(line))
  matchEach(t, lines, [
    /^\[[^\]]+\] INFO \(\d+\): listening on http:\/\/127\.0\.0\.1:\d+$/,
    ...['database', 'ready', 'stopping', 'stopped'].map((text) => new RegExp(`INFO \\(\\d+\\): ${text}$`)),
    /^$/
  ])
})

t.test('the log counts the lines that a slow or failing reader does not get', async (t) => {
  const error = new Error('write EPIPE')
  const written: string[] = []
  const stdout = Object.assign(new EventEmitter(), {
    writableLength: 0,
    write (text: string, done: (error?: Error) => void) {
      written.push(text)
      queueMicrotask(() => done(text.includes('lost') ? error : undefined))
    }
  })
  t.intercept(process, 'stdout', { value: stdout })
  const listeners = t.capture(process, 'once')
  const log = await openLogStream()
  for (const [lines, writableLength] of [
    [['first', 'line'], 2 ** 20], [['dropped', 'dropped'], 2 ** 20 + 1], [['dropped'], 2 ** 20 + 1],
    [['second'], 2 ** 20], [['lost', 'lost'], 0], [['third'], 0]
  ] as const) {
    Object.assign(stdout, { writableLength })
    for (const line of lines) log.write(`${line}\n`)
    await nextTick()
  }
  stdout.emit('error', error)
  const warning = (start: string, dropped: number, line: string) =>
    new RegExp(`^${start}{"level":"warn",.*"dropped":${dropped},"msg":"log lines were dropped"}\n${line}\n$`)
  matchEach(t, written,
    ['first\nline\n', warning('', 3, 'second'), 'lost\nlost\n', warning('\n', 2, 'third')])
  log.write('at the exit\n')
  const [, flush] = listeners.args().find(([event]) => event === 'exit') as unknown as [string, () => void]
  flush()
  t.equal(written.at(-1), 'at the exit\n')
})

t.test('Ctrl-C ends an import, and the report tells what is stored', inParallel, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  // The import waits for the end of this transaction, which creates the second plant.
  await openSession(t, DATABASE_URL, "begin; insert into plants (owner, id, name) values ('ann', 1, '')")
  const { child, ended } = start(['import', 'ann', '--chunk', '1'], { DATABASE_URL })
  child.stdin.end(ndjson(2))
  while ((await sql(DATABASE_URL, waitingForLocks)).length === 0) await setTimeout(10)
  child.kill('SIGINT')
  t.match(await ended,
    { code: 130, stderr: 'interrupted\n1 created, 0 existing, 0 rejected; stored up to line 1\n' })
  t.equal(await countPlants(DATABASE_URL), 1)
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

  await openSession(t, DATABASE_URL, 'begin; lock table plants')
  const folder = t.testdir()
  const { child, ended } = unmeasured.start(['export', '--all', join(folder, 'out.csv.gz')], { DATABASE_URL })
  while ((await sql(DATABASE_URL, waitingForLocks)).length === 0) await setTimeout(10)
  child.kill('SIGINT')
  t.match(await ended, { code: 130, stderr: 'interrupted\n' })
  t.strictSame(await readdir(folder), [])
})
