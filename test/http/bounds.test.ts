// What callers may hold of the service together: connections, unfinished bodies, responses that nobody reads.
import { once } from 'node:events'
import { connect, type Server, type Socket } from 'node:net'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { startBlocked } from '../support/blocked.ts'
import { exchange } from '../support/raw.ts'

function open (t: Test, address: string): Socket {
  const { hostname, port } = new URL(address)
  const socket = connect(Number(port), hostname)
  socket.on('error', () => {})
  t.teardown(() => { socket.destroy() })
  return socket
}

// One waits for what is bounded by time.
t.jobs = 3

const live = 'GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'

t.test('of connections beyond MAX_CONNECTIONS each is closed at once, and the next one is served when there is room', async (t) => {
  const { app, listen, log } = await startApp(t, { MAX_CONNECTIONS: '2' })
  const address = await listen()
  const first = open(t, address)
  const second = open(t, address)
  await Promise.all([once(first, 'connect'), once(second, 'connect')])
  const third = open(t, address).resume()
  await once(third, 'close')
  t.match(log.map((line) => JSON.parse(line)).find(({ error }) => error === 50302), { level: 'warn', reason: 'too many connections', remoteAddress: '127.0.0.1' })
  first.destroy()
  while (await count(app.server) > 1) await new Promise(setImmediate)
  t.match(await exchange(address, [live]), [{ status: 200 }])
})

const count = (server: Server) => new Promise<number>((resolve) => server.getConnections((_error, count) => resolve(count)))

t.test('a body that does not fit in the memory budget is rejected before it is read', async (t) => {
  const { as, listen } = await startApp(t, { MEMORY_BUDGET: '16777216' })
  const address = await listen()
  const [alice, bob] = await Promise.all([as('alice'), as('bob')])

  /** Sends the head of a create of 128 KiB. */
  function begin ({ authorization }: typeof alice, framing = 'Content-Length: 131072') {
    const socket = open(t, address)
    socket.write('POST /plants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nExpect: 100-continue\r\n' +
      `Authorization: ${authorization}\r\n${framing}\r\n\r\n`)
    return { socket, response: once(socket, 'data').then(([bytes]) => String(bytes).slice(0, 12)) }
  }
  // One user may hold half of the budget. A body of unknown length counts as the largest one.
  const begun = Array.from({ length: 64 }, (_, index) =>
    begin(alice, index % 2 === 0 ? 'Transfer-Encoding: chunked' : undefined))
  for (const { response } of begun) t.equal(await response, 'HTTP/1.1 100')
  t.equal(await begin(alice).response, 'HTTP/1.1 503')
  t.equal(await begin(bob).response, 'HTTP/1.1 100')
  t.equal((await alice.create({ id: 1, name: 'small' })).statusCode, 200)
  begun[0]?.socket.destroy()
  let response
  while ((response = await begin(alice).response) === 'HTTP/1.1 503');
  t.equal(response, 'HTTP/1.1 100', 'its memory is released when the client has gone')
})

t.test('the files of the page are compressed, can be validated, and are read once', async (t) => {
  const { app } = await startApp(t)
  const url = '/docs/scalar.js'
  const [plain, packed] = await Promise.all([app.inject(url), app.inject({ url, headers: { 'accept-encoding': 'gzip, br' } })])
  t.match(packed.headers, { 'content-encoding': 'gzip', 'content-type': 'text/javascript; charset=utf-8', vary: 'accept-encoding', 'cache-control': /max-age/ })
  t.ok(packed.rawPayload.length < plain.rawPayload.length / 2)
  t.same(plain.headers['content-encoding'], undefined)
  t.not(plain.headers.etag, packed.headers.etag)
  for (const { headers: { etag }, encoding } of [{ ...plain, encoding: 'gzip;q=0' }, { ...packed, encoding: 'gzip' }]) {
    const again = await app.inject({ url: `${url}?x`, headers: { 'if-none-match': etag as string, 'accept-encoding': encoding } })
    t.match(again, { statusCode: 304, body: '', headers: { etag } })
  }
  t.equal((await app.inject({ method: 'HEAD', url })).headers['content-length'], String(plain.rawPayload.length))
  t.equal((await app.inject('/docs/nothing.js')).statusCode, 404)
})

t.test('files of the page that are asked for together go out one in a turn of the event loop', async (t) => {
  const { app, listen } = await startApp(t)
  const address = await listen()
  const sockets: Socket[] = []
  app.server.on('connection', (socket: Socket) => { sockets.push(socket) })
  const begun = () => sockets.filter(({ bytesWritten }) => bytesWritten > 0).length
  const callers = Array.from({ length: 20 }, () => open(t, address).pause())
  for (const caller of callers) caller.write('GET /docs/scalar.js HTTP/1.1\r\nHost: x\r\n\r\n')
  let most = 0
  for (let before = 0, now = 0; now < callers.length; before = now) {
    await new Promise(setImmediate)
    now = begun()
    most = Math.max(most, now - before)
  }
  t.equal(most, 1)
})

t.test('what is under way when a stop begins is answered, and told that its connection ends', async (t) => {
  const { app, alice: { authorization }, listen, sendBlocked, unblock } = await startBlocked(t)
  const address = await listen()
  const head = `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n`
  const create = `${head}Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{"id":1,"name":"n"}`
  const [responses] = await sendBlocked(() => exchange(address, [create]))
  const closed = app.close()
  while (app.server.listening) await new Promise(setImmediate)
  await unblock()
  t.match(await responses, [{ status: 200, headers: { connection: 'close' } }])
  await closed
})

t.test('neither a reader who takes nothing nor a body that doesn\'t end holds up a stop', async (t) => {
  const { app, as, listen, url } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  await sql(url, "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")
  const send = async (text: string) => {
    const accepted = once(app.server, 'connection') as Promise<[Socket]>
    open(t, address).pause().write(text)
    return (await accepted)[0]
  }
  const reader = await send(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
  const writer = await send(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{`)
  while (reader.writableLength === 0 || writer.bytesRead === 0) await new Promise(setImmediate)
  // Cut by whatever bound is the shortest: without one of the stop's own that of the request would be, after half a minute.
  await app.close()
  t.ok(reader.destroyed && writer.destroyed)
})

t.test('who still takes a list is cut off before a stop would have to be given up, and the log tells', async (t) => {
  const { app, as, listen, url, lifecycle, log } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  await sql(url, "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")
  const reader = open(t, address).pause()
  reader.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
  await once(reader, 'readable')
  // Some fifteen seconds for all of it.
  const reading = setInterval(() => { reader.read(65_536) }, 50)
  t.teardown(() => clearInterval(reading))
  Object.assign(lifecycle, { forceCloseAt: performance.now() + 100 })
  await app.close()
  t.match(log.at(-1), /"connections":1,"msg":"the shutdown cuts unfinished lists and bodies"/)
})

t.test('error responses are spread over several ticks', async (t) => {
  const { app } = await startApp(t)
  await app.ready()
  let tick = 0
  let counting = setImmediate(function count () {
    tick++
    counting = setImmediate(count)
  })
  t.teardown(() => clearImmediate(counting))
  const ticks = new Map<number, number>()
  await Promise.all(Array.from({ length: 200 }, async () => {
    t.equal((await app.inject('/nowhere')).statusCode, 404)
    ticks.set(tick, (ticks.get(tick) ?? 0) + 1)
  }))
  t.ok(Math.max(...ticks.values()) <= 32, [...ticks.values()].join())
})
