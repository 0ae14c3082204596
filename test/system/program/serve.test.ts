import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { setTimeout } from 'node:timers/promises'
import { join } from 'node:path'
import { pathToFileURL } from 'node:url'
import { stripVTControlCharacters } from 'node:util'
import pg from 'pg'
import t, { type Test } from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { startApp } from '../../support/app.ts'
import { createDatabase, sql, waitingForLocks } from '../../support/database.ts'
import { run, serve, unmeasured, type Program } from '../../support/program.ts'

const DATABASE_URL = await createDatabase(t)
const { as } = await startApp(t, { DATABASE_URL })
const { authorization } = await as('alice')
const headers = { authorization, 'content-type': 'application/json' }

/** Returns the log without lines about event-loop lag, which a busy machine causes. */
const linesOf = ({ log }: Program) => log.filter(({ msg }) => !String(msg).includes('event loop'))

/** Sends a create that waits for a table lock. `release` releases the lock. */
async function createSlowly (t: Test, { address }: Program, id: number) {
  const client = new pg.Client(DATABASE_URL)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants in exclusive mode')
  const body = JSON.stringify({ id, name: 'Monstera' })
  const response = fetch(`${address}/plants`, { method: 'POST', headers, body })
  while ((await client.query(waitingForLocks)).rowCount === 0) await setTimeout(10)
  return { response, release: () => client.query('commit') }
}

t.test('SIGTERM: the service is unready for the delay, finishes its requests and exits with 0', async (t) => {
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '1s' })
  const { address, child, exited, logged } = service
  const { response, release } = await createSlowly(t, service, 1)
  child.kill('SIGTERM')
  await logged('stopping')

  const newcomer = await fetch(`${address}/plants`, { headers })
  t.equal(newcomer.status, 200)
  t.equal(newcomer.headers.get('connection'), 'close')
  const ready = await fetch(`${address}/readyz`)
  t.equal(ready.status, 503)
  t.match(await ready.json(), { error: 50303 })
  t.equal((await fetch(`${address}/livez`)).status, 200)

  // After the drain delay, the service stops listening, but still waits for the create.
  while (await fetch(`${address}/livez`).then(() => true, () => false)) await setTimeout(50)
  await release()
  t.equal((await response).status, 200)
  t.strictSame(await exited, [0, null])
  const lines = service.log.filter(({ level }) => level === 'info').slice(-2)
  t.match(lines, [{ msg: 'stopping', signal: 'SIGTERM' }, { msg: 'stopped' }])
})

t.test('SIGINT: the service finishes its requests without the delay', async (t) => {
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '29s', SHUTDOWN_TIMEOUT: '30s' })
  const { response, release } = await createSlowly(t, service, 2)
  service.child.kill('SIGINT')
  await service.logged('stopping')
  await release()
  t.equal((await response).status, 200)
  t.strictSame(await service.exited, [0, null])
})

t.test('SIGUSR2: the first turns debug logging on, the second turns it off', async (t) => {
  const service = await serve(t, { DATABASE_URL })
  const list = () => fetch(`${service.address}/plants`, { headers })
  service.child.kill('SIGUSR2')
  await service.logged('SIGUSR2: the log level is debug from here on')
  t.equal((await list()).status, 200)
  await service.logged('request completed')

  service.child.kill('SIGUSR2')
  await service.logged('SIGUSR2: the log level is info from here on')
  t.equal((await list()).status, 200)
  service.child.kill('SIGINT')
  t.strictSame(await service.exited, [0, null])
  t.equal(service.log.filter(({ msg }) => msg === 'request completed').length, 1)
})

t.test('a request that outlasts SHUTDOWN_TIMEOUT is cut, and the exit code is 1', async (t) => {
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '0', SHUTDOWN_TIMEOUT: '300ms' })
  const { response, release } = await createSlowly(t, service, 3)
  const cut = t.rejects(response)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [1, null])
  t.match(linesOf(service).at(-1), { level: 'error', msg: 'killed by timeout (300ms)' })
  await cut
  await release()
})

t.test('a second signal ends the service at once', async (t) => {
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '59s', SHUTDOWN_TIMEOUT: '1m' })
  service.child.kill('SIGTERM')
  await service.logged('stopping')
  // For a second after the first signal, the service ignores further signals. So repeat the signal.
  while (service.child.exitCode === null) {
    service.child.kill('SIGTERM')
    await setTimeout(100)
  }
  t.strictSame(await service.exited, [1, null])
  t.match(linesOf(service).at(-1), { msg: 'second SIGTERM, exiting' })
})

t.test('an uncaught error is logged with its stack and ends the service with exit code 1', async (t) => {
  const broken = join(t.testdir(), 'broken.mjs')
  await writeFile(broken, 'process.on("SIGWINCH", () => { throw new Error("a test error") })')
  const NODE_OPTIONS = `${process.env.NODE_OPTIONS} --import=${pathToFileURL(broken)}`
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '1m', SHUTDOWN_TIMEOUT: '2m', NODE_OPTIONS })
  service.child.kill('SIGWINCH')
  t.strictSame(await service.exited, [1, null])
  const err = { message: 'a test error', stack: /broken\.mjs/ }
  t.match(linesOf(service).slice(-2), [{ level: 'fatal', err }, { msg: 'stopped' }])
})

t.test('a start on a port in use fails with one line', async (t) => {
  const service = await unmeasured.serve(t, { DATABASE_URL })
  const { port } = new URL(service.address)
  const { code, stdout, stderr } = await run(['serve'], { DATABASE_URL, PORT: port })
  t.strictSame({ code, stderr }, { code: 1, stderr: `port ${port} on 127.0.0.1 is in use\n` })
  t.notMatch(stdout, 'listening')
  t.equal((await fetch(`${service.address}/readyz`)).status, 200)
})

t.test('a start on an address of another machine fails with one line', async (t) => {
  t.match(await run(['serve'], { DATABASE_URL, HOST: '192.0.2.1', PORT: '0' }),
    { code: 1, stderr: /^listen EADDRNOTAVAIL.* 192\.0\.2\.1\n$/ })
})

t.test('on a terminal the log is readable, and Ctrl-C ends the service', async (t) => {
  const env = { ...process.env, DATABASE_URL, PORT: '0' }
  const terminal = spawn('script', ['-qec', `exec ${process.execPath} src/main.ts`, '/dev/null'], { env })
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
  const lines = stripVTControlCharacters(shown).split('\r\n').filter((line) => !line.startsWith('    '))
  t.match(lines, [
    /^\[[^\]]+\] INFO \(\d+\): listening on http:\/\/127\.0\.0\.1:\d+$/,
    ...['database', 'ready', 'stopping', 'stopped'].map((text) => new RegExp(`INFO \\(\\d+\\): ${text}$`))
  ])
})

const tooOld = 'PostgreSQL 14.9 is too old. The service needs PostgreSQL 15 or later.\n'

/** Creates a database in which PostgreSQL reports the version 14.9. */
async function createOld (t: Test): Promise<string> {
  const url = await createDatabase(t, { template: 'template0' })
  await sql(url, `create function public.current_setting (name text) returns text language sql
    return case name when 'server_version_num' then '140009' else pg_catalog.current_setting(name) end`)
  await sql(url, `alter database ${new URL(url).pathname.slice(1)} set search_path = public, pg_catalog`)
  return url
}

t.test('the log has the versions of the service and of the server', async (t) => {
  const url = await createDatabase(t)
  const [row] = await sql(url, 'show server_version')
  const service = await unmeasured.serve(t, { DATABASE_URL: url })
  const ready = await service.logged('ready')
  t.equal(ready.version, manifest.version)
  t.match(row?.server_version, new RegExp(`^${ready.postgresql}\\b`))
})

t.test('a start on a server that is too old fails with one line and changes nothing', async (t) => {
  const DATABASE_URL = await createOld(t)
  const served = await run(['serve'], { DATABASE_URL, PORT: '0' })
  t.strictSame([served.code, served.stderr], [1, tooOld])
  t.strictSame(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 1, stdout: '', stderr: tooOld })
  t.strictSame(await sql(DATABASE_URL, "select from pg_tables where schemaname = 'public'"), [])
})

const maxBacklog = await readFile('/proc/sys/net/core/somaxconn', 'utf8').then(Number, () => 0)
const skip = maxBacklog < 1000 && 'the system has a shorter backlog'

t.test('900 connections that arrive together wait in the backlog', { skip }, async (t) => {
  const service = await unmeasured.serve(t, { DATABASE_URL, DRAIN_DELAY: '0' })
  const { hostname, port } = new URL(service.address)
  service.child.kill('SIGSTOP')
  const sockets = Array.from({ length: 900 }, () => connect(Number(port), hostname))
  t.teardown(() => { for (const socket of sockets) socket.destroy() })
  await Promise.all(sockets.map((socket) => once(socket, 'connect')))
  service.child.kill('SIGCONT')
  t.equal((await fetch(`${service.address}/livez`)).status, 200)
})
