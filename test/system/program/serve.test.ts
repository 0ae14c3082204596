// Tests signals, the backlog, and processes that share a port.
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { Agent, request, type IncomingMessage } from 'node:http'
import { connect } from 'node:net'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startApp } from '../../support/app.ts'
import { createDatabase, openSession, waitingForLocks } from '../../support/database.ts'
import { unmeasured, type Program } from '../../support/program.ts'
import { openProxy } from '../faults/proxy.ts'

const { serve, start } = unmeasured
const DATABASE_URL = await createDatabase(t)
const { as } = await startApp(t, { DATABASE_URL })
const { authorization } = await as('alice')
const headers = { authorization, 'content-type': 'application/json' }

/** Sends a create that waits for a table lock. `release` releases the lock. */
async function createSlowly (t: Test, { address }: Program) {
  const client = await openSession(t, DATABASE_URL, 'begin; lock table plants in exclusive mode')
  const body = JSON.stringify({ id: Date.now(), name: 'Monstera' })
  const response = fetch(`${address}/plants`, { method: 'POST', headers, body })
  while ((await client.query(waitingForLocks)).rowCount === 0) await setTimeout(10)
  return { response, release: () => client.query('commit') }
}

const maxBacklog = Number(await readFile('/proc/sys/net/core/somaxconn', 'utf8'))

t.test('SIGTERM with a delay, and SIGINT at once, end the service after its requests', async (t) => {
  for (const [signal, DRAIN_DELAY] of [['SIGTERM', '1s'], ['SIGINT', '59m']] as const) {
    const service = await serve(t, { DATABASE_URL, DRAIN_DELAY, SHUTDOWN_TIMEOUT: '1h' })
    const { address, child, exited, logged } = service
    const { response, release } = await createSlowly(t, service)
    child.kill(signal)
    t.match(await logged('stopping'), { signal })
    for (const [path, status] of [['/plants', 200], ['/readyz', 503], ['/livez', 200]] as const) {
      if (signal === 'SIGTERM') t.equal((await fetch(address + path, { headers })).status, status, path)
    }
    // Then the service stops listening, but still waits for the create.
    while (await fetch(`${address}/livez`).then(() => true, () => false)) await setTimeout(50)
    await release()
    t.equal((await response).status, 200)
    t.strictSame(await exited, [0, null])
  }
})

t.test('a second signal within a second changes nothing, nor does SIGUSR2 during the start', async (t) => {
  // The service warns of this variable before it starts.
  const environment = { DATABASE_URL, PORT: '0', DRAIN_DELAY: '0', KEEP_ALIVE_TIMEOUTS: '1s' }
  const { child, ended } = start(['serve'], environment)
  t.teardown(() => { child.kill('SIGKILL') })
  await once(child.stderr, 'data')
  child.kill('SIGUSR2')
  for await (const chunk of child.stdout) if (String(chunk).includes('"msg":"ready"')) break
  child.kill('SIGTERM')
  for (const signal of ['SIGHUP', 'SIGQUIT', 'SIGINT', 'SIGTERM'] as const) child.kill(signal)
  t.equal((await ended).code, 0)
})

t.test('a shutdown in time exits with code 0, and names the writes that it cuts', async (t) => {
  for (const REUSE_PORT of ['off', 'on']) {
    const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '0', SHUTDOWN_TIMEOUT: '1s', REUSE_PORT })
    const { response, release } = await createSlowly(t, service)
    const cut = t.rejects(response)
    const { hostname, port } = new URL(service.address)
    const open = (text: string) => {
      const socket = connect({ port: Number(port), host: hostname, allowHalfOpen: true })
        .on('error', () => {})
      t.teardown(() => { socket.destroy() })
      socket.resume().write(text)
      return socket
    }
    // These clients never close their connections.
    const live = 'GET /livez HTTP/1.1\r\nHost: x\r\n'
    const late = open(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
      'Content-Type: application/json\r\nContent-Length: 4\r\n\r\n')
    for (const text of ['', 'GET /pl', `${live}\r\n`, `${live}Connection: close\r\n\r\n`]) open(text)
    await fetch(`${service.address}/livez`)
    service.child.kill('SIGTERM')
    await service.logged('stopping')
    late.write('1234')
    t.strictSame(await service.exited, [0, null])
    const isWrite = ({ msg }: (typeof service.log)[0]) => String(msg).startsWith('the shutdown cuts a write')
    const [write, ...others] = service.log.filter(isWrite)
    t.match(write?.reqId, /^[\w-]+-\d+$/)
    t.same(others, [])
    await cut
    await release()
  }
})

t.test('900 connections that arrive together wait in the backlog', { skip: maxBacklog < 1000 }, async (t) => {
  const service = await serve(t, { DATABASE_URL, DRAIN_DELAY: '0' })
  const { hostname, port } = new URL(service.address)
  service.child.kill('SIGSTOP')
  const sockets = Array.from({ length: 900 }, () => connect(Number(port), hostname))
  t.teardown(() => { for (const socket of sockets) socket.destroy() })
  await Promise.all(sockets.map((socket) => once(socket, 'connect')))
  service.child.kill('SIGCONT')
  t.equal((await fetch(`${service.address}/livez`)).status, 200)
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

t.test('a process of a shared port gets new connections only while it is ready', async (t) => {
  const shared = { DATABASE_URL, REUSE_PORT: 'on' }
  const { address } = await serve(t, shared)
  const PORT = new URL(address).port

  /** Requests /livez. By default, the request has a new connection. */
  async function get (agent: Agent | false = false) {
    const sent = request(`${address}/livez`, { agent }).end()
    const [response] = await once(sent, 'response') as [IncomingMessage]
    await once(response.resume(), 'end')
    const { 'x-request-id': id, connection } = response.headers
    // A request id begins with an id of the process.
    return { status: response.statusCode, process: String(id).split('-')[0], connection }
  }
  async function getOften () {
    const responses = await Promise.all(Array.from({ length: 50 }, () => get()))
    return [...new Set(responses.flatMap(({ status, process }) => [status, process]))]
  }

  const { process } = await get()
  const starting = start(['serve'], { ...shared, PORT, DATABASE_URL: 'postgres://127.0.0.1:1/none' })
  t.teardown(() => { starting.child.kill('SIGKILL') })
  for await (const chunk of starting.child.stdout) if (String(chunk).includes('next attempt')) break
  t.strictSame(await getOften(), [200, process])
  const second = await serve(t, { ...shared, PORT, DRAIN_DELAY: '1s' })
  // Open connections until one of them belongs to the second process.
  let agent: Agent | undefined
  do {
    agent = new Agent({ keepAlive: true })
    t.teardown(() => agent?.destroy())
  } while ((await get(agent)).process === process)
  second.child.kill('SIGTERM')
  await second.logged('stopping')
  t.match(await get(agent), { status: 200, connection: 'close' })
  t.strictSame(await getOften(), [200, process])
  t.strictSame(await second.exited, [0, null])
})
