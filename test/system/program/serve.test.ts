import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, stat, truncate } from 'node:fs/promises'
import { connect } from 'node:net'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startApp } from '../../support/app.ts'
import { createDatabase, openSession, waitingForLocks } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { asShipped, program, unmeasured, type Program } from '../../support/program.ts'
import { openProxy } from '../faults/proxy.ts'

const { serve } = unmeasured
const DATABASE_URL = await createDatabase(t)
const { as } = await startApp(t, { DATABASE_URL })
const { authorization } = await as('alice')
const headers = { authorization, 'content-type': 'application/json' }

/** Sends a create that waits for a table lock. `release` releases the lock. */
async function createSlowly (t: Test, { address }: Program, id: number) {
  const client = await openSession(t, DATABASE_URL, 'begin; lock table plants in exclusive mode')
  const body = JSON.stringify({ id, name: 'Monstera' })
  const response = fetch(`${address}/plants`, { method: 'POST', headers, body })
  while ((await client.query(waitingForLocks)).rowCount === 0) await setTimeout(10)
  return { response, release: () => client.query('commit') }
}

const maxBacklog = await readFile('/proc/sys/net/core/somaxconn', 'utf8').then(Number, () => 0)
const skip = maxBacklog < 1000 && 'the system has a shorter backlog'

t.test('SIGTERM: the service is unready for the delay, finishes its requests and exits with 0', async (t) => {
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '1s' })
  const { address, child, exited, logged } = service
  const { response, release } = await createSlowly(t, service, 1)
  child.kill('SIGTERM')
  t.match(await logged('stopping'), { signal: 'SIGTERM' })
  for (const [path, status] of [['/plants', 200], ['/readyz', 503], ['/livez', 200]] as const) {
    t.equal((await fetch(address + path, { headers })).status, status, path)
  }

  // After the drain delay, the service stops listening, but still waits for the create.
  while (await fetch(`${address}/livez`).then(() => true, () => false)) await setTimeout(50)
  await release()
  t.equal((await response).status, 200)
  t.strictSame(await exited, [0, null])
})

t.test('SIGINT: the service finishes its requests without the delay', async (t) => {
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '29s', SHUTDOWN_TIMEOUT: '30s' })
  const { response, release } = await createSlowly(t, service, 2)
  service.child.kill('SIGINT')
  await service.logged('stopping')
  await release()
  t.equal((await response).status, 200)
  t.strictSame(await service.exited, [0, null])
})

t.test('a request that outlasts SHUTDOWN_TIMEOUT is cut, and the exit code is 1', async (t) => {
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '0', SHUTDOWN_TIMEOUT: '300ms' })
  const { response, release } = await createSlowly(t, service, 3)
  const cut = t.rejects(response)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [1, null])
  t.match(service.log.findLast(({ level }) => level === 'error'), { msg: 'killed by timeout (300ms)' })
  await cut
  await release()
})

t.test('900 connections that arrive together wait in the backlog', { skip }, async (t) => {
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '0' })
  const { hostname, port } = new URL(service.address)
  service.child.kill('SIGSTOP')
  const sockets = Array.from({ length: 900 }, () => connect(Number(port), hostname))
  t.teardown(() => { for (const socket of sockets) socket.destroy() })
  await Promise.all(sockets.map((socket) => once(socket, 'connect')))
  service.child.kill('SIGCONT')
  t.equal((await fetch(`${service.address}/livez`)).status, 200)
})

t.test('a full disk loses log lines, and the log says how many when there is room', async (t) => {
  const [port, log] = [await freePort(), join(t.testdir(), 'log')]
  const env = { ...process.env, DATABASE_URL, PORT: String(port), LOG_LEVEL: 'debug', DRAIN_DELAY: '0' }
  // No file of the service may exceed 64 blocks. Beyond that, a write fails as on a full disk.
  const limited = ['-c', `ulimit -f 64; exec "$@" >> ${log}`, 'sh', 'env', ...asShipped, ...program, 'serve']
  const child = spawn('sh', limited, { env })
  t.teardown(() => { child.kill('SIGKILL') })
  const exited = once(child, 'exit')
  const get = () => fetch(`http://127.0.0.1:${port}/livez`).then(({ ok }) => ok, () => false)
  while (!await get()) await setTimeout(50)
  for (let before = -1, size = 0; size > before; before = size, { size } = await stat(log)) {
    for (let sent = 0; sent < 50; sent++) await get()
  }
  await truncate(log)
  for (let sent = 0; sent < 2; sent++) await get()
  const text = await readFile(log, 'utf8')
  t.match(text, /"level":"warn",.*"dropped":[1-9]\d*,"msg":"log lines were dropped"/)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('the service stops while its database accepts connections and does not respond', async (t) => {
  const proxy = await openProxy(t, DATABASE_URL)
  const { address, child, exited } =
    await serve(t, { DATABASE_URL: proxy.url, SHUTDOWN_TIMEOUT: '1s', DRAIN_DELAY: '0' })
  proxy.set('silent')
  proxy.cut()
  t.equal((await fetch(`${address}/readyz`)).status, 503)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})
