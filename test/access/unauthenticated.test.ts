// Tests many simultaneous requests on connections that have not sent a valid token yet.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { tokenEvents } from '../../src/events.ts'
import { startApp } from '../support/app.ts'
import { matchEach } from '../support/match.ts'
import { parseResponses } from '../support/raw.ts'

const together = 200
// In one tick the service starts at most eight new and eight queued unauthenticated requests.
const maxPerTick = 16
const maxFirstReads = 16

async function start (t: Test, environment?: Record<string, string>) {
  const { app, as, log, listen } = await startApp(t, environment)
  const { hostname, port } = new URL(await listen())
  const { authorization } = await as('alice')
  const accepted = new Set<Socket>()
  let arrived = 0
  app.server.on('connection', (socket: Socket) => { accepted.add(socket) })
  app.server.on('request', () => { arrived += 1 })

  async function open (): Promise<Socket> {
    const socket = connect(Number(port), hostname)
    socket.on('error', () => {})
    t.teardown(() => { socket.destroy() })
    await once(socket, 'connect')
    return socket
  }

  return {
    app,
    open,
    accepted,
    arrived: () => arrived,
    request: (line: string, headers = `Authorization: ${authorization}\r\n`) =>
      `${line} HTTP/1.1\r\nHost: x\r\n${headers}\r\n`,

    completed: () => log.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request completed'),

    async openAll (): Promise<Socket[]> {
      const sockets = await Promise.all(Array.from({ length: together }, open))
      while (accepted.size < together) await new Promise(setImmediate)
      return sockets
    },

    /** Calls `act` as soon as the service has received 200 more requests. Then resolves. */
    onceArrived: (act: () => void) => new Promise<void>((resolve) => {
      const until = arrived + together
      app.server.on('request', () => {
        if (arrived !== until) return
        act()
        resolve()
      })
    })
  }
}

const invalidToken = 'Authorization: Bearer x\r\n'
const last = 'Connection: close\r\n'

t.test('a connection may close before its first request is read', async (t) => {
  const { app, accepted, arrived, open, openAll, request } = await start(t)
  const sockets = await openAll()
  const received = sockets.map((socket) => buffer(socket).catch(() => Buffer.alloc(0)))
  app.server.on('request', () => {
    if (arrived() === maxFirstReads) for (const socket of accepted) if (socket.isPaused()) socket.destroy()
  })
  for (const socket of sockets) socket.write(request('GET /livez', last))
  const responses = (await Promise.all(received)).map((bytes) => parseResponses(bytes))
  t.equal(responses.filter(([response]) => response?.status === 200).length, maxFirstReads)
  const next = await open()
  next.write(request('GET /livez', last))
  matchEach(t, parseResponses(await buffer(next)), [{ status: 200 }])
})

t.test('neither a connection with a valid token nor a probe is throttled', async (t) => {
  const { open, openAll, completed, request } = await start(t)
  const [alice, newcomer, sockets] = await Promise.all([open(), open(), openAll()])
  alice.write(request('GET /plants'))
  await once(alice, 'data')
  const before = completed().length
  for (const [index, socket] of sockets.entries()) {
    if (index === together / 2) alice.write(request('GET /openapi.json'))
    if (index === together / 2) newcomer.write(request('GET /livez', ''))
    socket.write(request('GET /plants', invalidToken))
  }
  const listed = once(alice, 'data')
  await Promise.all(sockets.map((socket) => once(socket, 'data')))
  await listed
  const routes = completed().slice(before).map(({ route }) => route)
  t.equal(routes.length, together + 2)
  t.ok(routes.indexOf('/openapi.json') <= maxPerTick, `${routes.indexOf('/openapi.json')}`)
  t.ok(routes.indexOf('/livez') <= maxPerTick, `${routes.indexOf('/livez')}`)
})

t.test('unknown tokens are throttled on connections of a proxy that sent valid tokens', async (t) => {
  const { open, openAll, completed, request } = await start(t, { TRUSTED_PROXIES: 'loopback' })
  const [proxied, sockets] = await Promise.all([open(), openAll()])
  for (const socket of [proxied, ...sockets]) {
    socket.write(request('GET /plants'))
    await once(socket, 'data')
  }
  const before = completed().length
  const send = (socket: Socket, address: string) => socket.write(
    request('GET /plants', `Authorization: Bearer ${createToken()}\r\nX-Forwarded-For: ${address}\r\n`))
  for (const [index, socket] of sockets.entries()) {
    if (index === together / 2) send(proxied, '192.0.2.2')
    send(socket, '192.0.2.1')
  }
  let [inTick, most] = [0, 0]
  const note = () => { most = Math.max(most, ++inTick) }
  tokenEvents.subscribe(note)
  t.teardown(() => tokenEvents.unsubscribe(note))
  const nextTick = () => {
    inTick = 0
    immediate = setImmediate(nextTick)
  }
  let immediate = setImmediate(nextTick)
  const responses = sockets.map((socket) => once(socket, 'data'))
  await once(proxied, 'data')
  t.ok(completed().length - before <= 4 * maxPerTick, 'fair for another address')
  await Promise.all(responses)
  clearImmediate(immediate)
  t.ok(most <= maxPerTick, `${most} look-ups in a tick`)
})

t.test('queued requests of clients that disconnect are not started', async (t) => {
  const { open, openAll, onceArrived, request } = await start(t)
  const sockets = await openAll()
  // Only the reads of first requests are limited, so the second requests arrive together.
  await Promise.all(sockets.map(async (socket) => {
    socket.write(request('GET /livez', ''))
    await once(socket, 'data')
  }))
  let started = 0
  const count = () => { started += 1 }
  tokenEvents.subscribe(count)
  t.teardown(() => tokenEvents.unsubscribe(count))
  const arrived = onceArrived(() => { for (const socket of sockets) socket.resetAndDestroy() })
  for (const socket of sockets) socket.write(request('GET /plants'))
  await arrived
  // If the service had kept the requests of the closed connections, it would start them before this request.
  const next = await open()
  next.write(request('GET /openapi.json'))
  await once(next, 'data')
  t.ok(started <= 4 * maxPerTick, `${started}`)
})
