// Starts and kills the PostgreSQL server that a checkout brings.
import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { chmod, mkdir, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { promisify } from 'node:util'
import t, { type Test } from 'tap'
import { plantsTable } from '../../../src/plants/plant.ts'
import { createDataDir, findServer, isRunning } from '../../support/embedded.ts'
import { matchEach } from '../../support/match.ts'
import { findChildren } from '../../support/processes.ts'
import { program, startedBy, unmeasured, withoutHooks, type Program } from '../../support/program.ts'
import { exampleOf } from '../../support/tables.ts'

type Started = ReturnType<typeof unmeasured.start>

const environmentOf = (DATA_DIR: string) =>
  ({ DATABASE_URL: undefined, DATA_DIR, DRAIN_DELAY: '0', PORT: '0' })

function isAlive (pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch {
    return false
  }
}

await t.test('after a first start was killed halfway, the next one succeeds', async (t) => {
  const DATA_DIR = await createDataDir(t)
  const halfway = unmeasured.start(['serve'], environmentOf(DATA_DIR))
  while ((await readdir(DATA_DIR)).length === 0) await setTimeout(10)
  const [supervisor] = await findChildren(halfway.child.pid) as [number]
  // Kill the process group: dev/supervisor.ts and its PostgreSQL processes.
  process.kill(-supervisor, 'SIGKILL')
  const stderr = `DATABASE_URL is not set, and PostgreSQL did not start in ${DATA_DIR}: it ended\n`
  t.strictSame(await halfway.ended, { code: 1, stdout: '', stderr })
  matchEach(t, await readdir(DATA_DIR), [/^new-/])
  // The folder counts as abandoned when the system has removed the killed process.
  while (isAlive(supervisor)) await setTimeout(10)
  t.match(await unmeasured.run(['migrate'], environmentOf(DATA_DIR)), { code: 0 })
  t.strictSame(await readdir(DATA_DIR), ['postgresql', 'server.json'])
})

await t.test('two first starts share the database, and leave only its folder', async (t) => {
  const DATA_DIR = await createDataDir(t)
  const services = await Promise.all([1, 2].map(() => unmeasured.serve(t, environmentOf(DATA_DIR))))
  const [service, other] = services.toSorted((one, two) => two.stderr().length - one.stderr().length) as
    [Program, Program]
  while (service.stderr().split('\n').length <= 6) await once(service.child.stderr, 'data')
  const [token] = /plant_\w{57}/.exec(service.stderr()) as RegExpExecArray
  t.notMatch(JSON.stringify(service.log), token, 'the log does not show the token')
  for (const secret of ['server.json', 'postgresql/plant-store.password']) {
    t.equal((await stat(join(DATA_DIR, secret))).mode & 0o777, 0o600, secret)
  }
  const commands = service.stderr().match(/^curl .*/gm) as string[]
  const script = commands.map((line) => `${line} --silent --show-error --fail; echo`).join('\n')
  const { id, ...fields } = exampleOf(plantsTable, 1)
  const plant = JSON.stringify(fields)
  t.equal((await promisify(execFile)('sh', ['-ec', script])).stdout, `${plant}\n[${plant}]\n\n`)
  for (const { child, exited } of [service, other]) {
    t.match(await (await fetch(`${other.address}/readyz`)).json(), { status: 'ok' })
    child.kill('SIGTERM')
    t.strictSame(await exited, [0, null])
  }
  t.strictSame(await readdir(DATA_DIR), ['postgresql', 'server.json'])
})

const skip = process.getuid?.() !== 0 && 'PostgreSQL runs as another user only under root'
await t.test('a DATA_DIR that PostgreSQL may not enter fails with one line', { skip }, async (t) => {
  const closed = join(await createDataDir(t), 'closed')
  await mkdir(closed, { mode: 0o700 })
  const { code, stdout, stderr } = await unmeasured.run(['serve'], environmentOf(join(closed, 'data')))
  t.strictSame({ code, stdout }, { code: 1, stdout: '' })
  t.match(stderr, /^DATABASE_URL is not set.*: could not access directory .*: Permission denied/)
  t.match(stderr, /\(started by root, PostgreSQL runs as the user postgres, .*\)\n$/)
  t.strictSame(await readdir(join(closed, 'data')), [])
})

await t.test('an ordinary user that may not write to DATA_DIR gets a line that says so', async (t) => {
  const folder = await createDataDir(t)
  await chmod(folder, 0o555)
  const words = process.getuid?.() === 0
    ? ['setpriv', '--reuid=65534', '--regid=65534', '--clear-groups', process.execPath, ...program]
    : [process.execPath, ...program]
  const DATA_DIR = join(folder, 'data')
  const { run } = startedBy(['env', ...withoutHooks, ...words])
  const { code, stderr } = await run(['serve'], environmentOf(DATA_DIR))
  t.equal(code, 1)
  t.match(stderr, /EACCES: permission denied, mkdir .* \(set DATA_DIR to a folder that you may write to\)\n$/)
})

// The following tests run in order. Each test continues with the data of the previous test.
const DATA_DIR = await createDataDir(t)
const environment = environmentOf(DATA_DIR)
const start = () => unmeasured.serve(t, environment, 'ready', { detached: true })
let service = await start()
const { stdout: token } = await unmeasured.run(['token', 'create', 'alice'], environment)
const headers = { authorization: `Bearer ${token.trim()}`, 'content-type': 'application/json' }
await fetch(`${service.address}/plants`, { method: 'POST', headers, body: '{"id":1,"name":"Monstera"}' })
const list = async () => (await fetch(`${service.address}/plants`, { headers })).json()
const stored = [{ name: 'Monstera' }]

async function stop (t: Test): Promise<void> {
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
}

await t.test('kill -9 of the supervisor, or of service and database together, loses nothing', async (t) => {
  const server = await findServer(DATA_DIR)
  const [supervisor] = await findChildren(service.child.pid) as [number]
  process.kill(supervisor, 'SIGKILL')
  t.strictSame(await list(), stored)
  await stop(t)
  t.equal(await findServer(DATA_DIR), server, 'the database server still runs')
  service = await start()
  t.not(await findServer(DATA_DIR), server)
  t.strictSame(await list(), stored)

  const together = [...await findChildren(service.child.pid), await findServer(DATA_DIR), service.child.pid]
  for (const pid of together) process.kill(pid as number, 'SIGKILL')
  service = await start()
  t.strictSame(await list(), stored)
})

await t.test('a stale server.json does not mislead the next start', async (t) => {
  await stop(t)
  t.notOk(isRunning(DATA_DIR))
  const notes = join(DATA_DIR, 'server.json')
  const { url } = JSON.parse(await readFile(notes, 'utf8'))
  const stderr = `DATABASE_URL is not set: using the PostgreSQL server in ${DATA_DIR}\n` +
    'No service uses this folder now. If your service runs, give the command the DATA_DIR or DATABASE_URL ' +
    'of the service.\n'
  for (const text of ['{', JSON.stringify({ url })]) {
    await writeFile(notes, text)
    const listed = await unmeasured.run(['token', 'list', '--user', 'alice'], environment)
    t.match(listed, { code: 0, stdout: /alice/, stderr }, text)
  }
  // Make server.json name a running server that does not use this folder.
  await writeFile(notes, JSON.stringify({ url: process.env.TEST_DATABASE_URL }))
  service = await start()
  t.strictSame(await list(), stored)
  await stop(t)
})

await t.test('a start waits for a server that is about to end', async (t) => {
  const folder = join(DATA_DIR, 'postgresql')
  const { uid, gid } = await stat(folder)
  // `sleep` stands in for the old server. A start waits up to five seconds for that server to end.
  const leaving = spawn('sleep', ['2'], { uid, gid })
  await writeFile(join(folder, 'postmaster.pid'), `${leaving.pid}\n`)
  service = await start()
  t.equal(leaving.exitCode, 0, 'the old process has ended')
  t.strictSame(await list(), stored)
  await stop(t)
})

await t.test('kill -9 of PostgreSQL alone interrupts the service only until it runs again', async (t) => {
  service = await start()
  process.kill(await findServer(DATA_DIR), 'SIGKILL')
  while ((await fetch(`${service.address}/plants`, { headers })).status !== 200) await setTimeout(100)
  t.strictSame(await list(), stored)
  await stop(t)
})

await t.test('a command goes on when the command that started PostgreSQL ends', async (t) => {
  const commands = ['ann', 'bob'].map((user) => unmeasured.start(['import', user], environment))
  const [first, second] = commands as [Started, Started]
  // Without a service, the progress of a command shows only in PostgreSQL.
  const notes = await Promise.all(commands.map(({ child }) => once(child.stderr, 'data')))
  t.equal(notes.length, 2)
  first.child.stdin.end('{"id":1,"name":"Fern"}')
  t.match(await first.ended, { code: 0, stderr: /\n1 created, 0 existing, 0 rejected\n$/ })
  second.child.stdin.end('{"id":1,"name":"Fern"}')
  t.match(await second.ended, { code: 0, stderr: /\n1 created, 0 existing, 0 rejected\n$/ })
})

await t.test('a start that is interrupted leaves no part of a cluster', async (t) => {
  const folder = await createDataDir(t)
  const { child, ended } = unmeasured.start(['serve'], environmentOf(folder))
  while ((await readdir(folder)).length === 0) await setTimeout(10)
  const [supervisor] = await findChildren(child.pid) as [number]
  child.kill('SIGINT')
  t.match(await ended, { code: 130 })
  while (existsSync(`/proc/${supervisor}`)) await setTimeout(10)
  t.strictSame(await readdir(folder), ['postgresql', 'server.json'])
})

await t.test('an empty postmaster.pid gets a remedy, and variables of libpq change nothing', async (t) => {
  const pid = join(DATA_DIR, 'postgresql/postmaster.pid')
  await writeFile(pid, '')
  t.match(await unmeasured.run(['user', 'list'], environment), { code: 1, stderr: `delete ${pid})\n` })
  await rm(pid)
  const libpq = { PGSSLMODE: 'require', PGOPTIONS: '-c none=1' }
  t.match(await unmeasured.run(['user', 'list'], { ...environment, ...libpq }), { code: 0 })
})
