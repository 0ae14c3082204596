// Requests that come together, from callers of whom nobody knows yet who they are.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import t, { type Test } from 'tap'
import { tokenEvents } from '../../../src/events.ts'
import { startApp } from '../../support/app.ts'
import { parseResponses } from '../../support/raw.ts'

const together = 200
// Eight of those that come in a turn of the event loop, and then eight of those that wait.
const mostInATurn = 16

async function start (t: Test) {
  const { app, as, log, listen } = await startApp(t)
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
    request: (line: string, headers = `Authorization: ${authorization}\r\n`) =>
      `${line} HTTP/1.1\r\nHost: x\r\n${headers}\r\n`,

    /** What has been answered so far, in order. */
    answered: () => log.map((line) => JSON.parse(line)).filter(({ msg }) => msg === 'answered'),

    async openAll (): Promise<Socket[]> {
      const sockets = await Promise.all(Array.from({ length: together }, open))
      while (accepted.size < together) await new Promise(setImmediate)
      return sockets
    },

    /** Until all have come of which nobody knows; `act` is called in the same turn. */
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

const stranger = 'Authorization: Bearer x\r\n'
const last = 'Connection: close\r\n'

t.test('a few of them are begun in a turn of the event loop, and those of a connection in their order', async (t) => {
  const { openAll, answered, request } = await start(t)
  const sockets = await openAll()
  const received = sockets.map((socket) => buffer(socket))
  const text = request('GET /plants', stranger) + request('GET /openapi.json', '') + request('GET /livez', last)
  for (const socket of sockets) socket.write(text)
  let most = 0
  for (let before = 0, now = 0; now < 3 * together; before = now) {
    await new Promise(setImmediate)
    now = answered().length
    most = Math.max(most, now - before)
  }
  t.ok(most <= mostInATurn, `${most}`)
  const statuses = (await Promise.all(received)).map((bytes) => parseResponses(bytes).map(({ status }) => status))
  t.same(statuses, Array(together).fill([401, 200, 200]))
})

t.test('who has shown a good token is not held up, nor is a probe', async (t) => {
  const { open, openAll, answered, request } = await start(t)
  const [alice, newcomer, sockets] = await Promise.all([open(), open(), openAll()])
  alice.write(request('GET /plants'))
  await once(alice, 'data')
  const before = answered().length
  for (const [index, socket] of sockets.entries()) {
    if (index === together / 2) alice.write(request('GET /openapi.json'))
    if (index === together / 2) newcomer.write(request('GET /livez', ''))
    socket.write(request('GET /plants', stranger))
  }
  const known = once(alice, 'data')
  await Promise.all(sockets.map((socket) => once(socket, 'data')))
  await known
  const routes = answered().slice(before).map(({ route }) => route)
  t.equal(routes.length, together + 2)
  t.ok(routes.indexOf('/openapi.json') <= mostInATurn, `${routes.indexOf('/openapi.json')}`)
  t.ok(routes.indexOf('/livez') <= mostInATurn, `${routes.indexOf('/livez')}`)
})

t.test('of who has gone meanwhile nothing is begun', async (t) => {
  const { open, openAll, onceArrived, request } = await start(t)
  const sockets = await openAll()
  let begun = 0
  const count = () => { begun += 1 }
  tokenEvents.subscribe(count)
  t.teardown(() => tokenEvents.unsubscribe(count))
  const arrived = onceArrived(() => { for (const socket of sockets) socket.resetAndDestroy() })
  for (const socket of sockets) socket.write(request('GET /plants'))
  await arrived
  // Whose turn is after theirs.
  const next = await open()
  next.write(request('GET /openapi.json'))
  await once(next, 'data')
  t.ok(begun <= mostInATurn, `${begun}`)
})

t.test('at a stop those that wait are answered, each the last of its connection', async (t) => {
  const { app, openAll, onceArrived, request } = await start(t)
  const sockets = await openAll()
  const received = sockets.map((socket) => buffer(socket))
  const stopped = Promise.withResolvers<void>()
  onceArrived(() => { stopped.resolve(app.close()) })
  for (const socket of sockets) socket.write(request('GET /plants'))
  await stopped.promise
  const responses = (await Promise.all(received)).map((bytes) => parseResponses(bytes))
  t.match(responses, Array(together).fill([{ status: 200, headers: { connection: 'close' } }]))
})
