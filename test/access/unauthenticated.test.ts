// Tests many simultaneous requests on connections that have not sent a valid token yet.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { createToken } from '../../src/access/tokens.ts'
import { tokenEvents } from '../../src/telemetry-events.ts'
import { startApp } from '../support/app.ts'

const together = 200
// In one tick the service starts at most this many unauthenticated requests.
const maxPerTick = 16

async function start (t: Test, environment?: Record<string, string>) {
  const { app, as, log, listen } = await startApp(t, environment)
  const { hostname, port } = new URL(await listen())
  const { authorization } = await as('alice')
  const accepted: Socket[] = []
  app.server.on('connection', (socket: Socket) => { accepted.push(socket) })

  async function open (): Promise<Socket> {
    const socket = connect(Number(port), hostname)
    socket.on('error', () => {})
    t.teardown(() => { socket.destroy() })
    await once(socket, 'connect')
    return socket
  }

  return {
    app,
    authorization,
    open,
    request: (line: string, headers = `Authorization: ${authorization}\r\n`) =>
      `${line} HTTP/1.1\r\nHost: x\r\n${headers}\r\n`,

    completed: () => log.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'request completed'),

    async openAll (): Promise<Socket[]> {
      const sockets = await Promise.all(Array.from({ length: together }, open))
      while (accepted.length < together) await new Promise(setImmediate)
      return sockets
    }
  }
}

t.test('unknown tokens are throttled, but no valid tokens, probes and other addresses', async (t) => {
  const { authorization, open, openAll, completed, request } = await start(t, { TRUSTED_PROXIES: 'loopback' })
  const [other, alice, probe, sockets] = await Promise.all([open(), open(), open(), openAll()])
  // A proxy may send unknown tokens on a connection that has sent a valid token.
  for (const socket of [other, alice, probe, ...sockets]) {
    socket.write(request('GET /plants'))
    await once(socket, 'data')
  }
  const before = completed().length
  const send = (socket: Socket, path: string, token = `Bearer ${createToken()}`, address = '192.0.2.1') =>
    socket.write(request(`GET ${path}`, `Authorization: ${token}\r\nX-Forwarded-For: ${address}\r\n`))
  let [inTick, most] = [0, 0]
  tokenEvents.subscribe(({ hit }) => {
    if (hit) return
    most = Math.max(most, ++inTick)
    setImmediate(() => { inTick = 0 })
  })
  for (const [index, socket] of sockets.entries()) {
    if (index === together / 2) {
      send(other, '/plants', undefined, '192.0.2.2')
      send(alice, '/openapi.json', authorization)
      send(probe, '/livez')
    }
    send(socket, '/plants')
  }
  const responses = Promise.all(sockets.map((socket) => once(socket, 'data')))
  await Promise.all([other, alice, probe].map((socket) => once(socket, 'data')))
  const routes = completed().slice(before).map(({ route }) => route)
  t.ok(routes.length <= 4 * maxPerTick, `fair for another address, after ${routes.length} requests`)
  for (const route of ['/openapi.json', '/livez']) t.ok(routes.indexOf(route) <= maxPerTick, routes.join())
  await responses
  t.ok(most <= maxPerTick, `${most} look-ups in a tick`)
})

t.test('queued requests of clients that disconnect are not started', async (t) => {
  const { app, open, openAll, request } = await start(t)
  const sockets = await openAll()
  let [arrived, started] = [0, 0]
  const disconnected = new Promise<void>((resolve) => app.server.on('request', () => {
    arrived++
    if (arrived < 2 * together) return
    for (const socket of sockets) socket.resetAndDestroy()
    resolve()
  }))
  await Promise.all(sockets.map(async (socket) => {
    socket.write(request('GET /livez', ''))
    await once(socket, 'data')
  }))
  tokenEvents.subscribe(() => { started++ })
  for (const socket of sockets) socket.write(request('GET /plants'))
  await disconnected
  // If the service had kept the requests of the closed connections, it would start them before this request.
  const next = await open()
  next.write(request('GET /openapi.json'))
  await once(next, 'data')
  t.ok(started <= 4 * maxPerTick, `${started}`)
})
