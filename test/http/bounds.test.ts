// Tests the limits on connections, unfinished bodies and unread responses.
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

// One test waits for a timeout. Run the tests in parallel to save time.
t.jobs = 3

const live = 'GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'

t.test('a connection beyond MAX_CONNECTIONS is closed at once, until another has closed', async (t) => {
  const { app, listen, log } = await startApp(t, { MAX_CONNECTIONS: '2' })
  const address = await listen()
  const first = open(t, address)
  const second = open(t, address)
  await Promise.all([once(first, 'connect'), once(second, 'connect')])
  const third = open(t, address).resume()
  await once(third, 'close')
  t.match(log.map((line) => JSON.parse(line)).find(({ error }) => error === 50302),
    { level: 'warn', reason: 'too many connections', remoteAddress: '127.0.0.1' })
  first.destroy()
  while (await count(app.server) > 1) await new Promise(setImmediate)
  t.match(await exchange(address, [live]), [{ status: 200 }])
})

const count = (server: Server) =>
  new Promise<number>((resolve) => server.getConnections((_error, count) => resolve(count)))

t.test('a body that does not fit in the memory budget is rejected before it is read', async (t) => {
  const { as, listen } = await startApp(t, { MEMORY_BUDGET: '16777216' })
  const address = await listen()
  const [alice, bob] = await Promise.all([as('alice'), as('bob')])

  /** Sends the head of a create, but no body. By default the head announces a body of 128 KiB. */
  function beginCreate ({ authorization }: typeof alice, framing = 'Content-Length: 131072') {
    const socket = open(t, address)
    socket.write('POST /plants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
      'Expect: 100-continue\r\n' +
      `Authorization: ${authorization}\r\n${framing}\r\n\r\n`)
    return { socket, response: once(socket, 'data').then(([bytes]) => String(bytes).slice(0, 12)) }
  }
  // One user may use half of the memory budget: 64 bodies of 128 KiB. A chunked body counts as
  // BODY_LIMIT: 128 KiB.
  const begun = Array.from({ length: 64 }, (_, index) =>
    beginCreate(alice, index % 2 === 0 ? 'Transfer-Encoding: chunked' : undefined))
  for (const { response } of begun) t.equal(await response, 'HTTP/1.1 100')
  t.equal(await beginCreate(alice).response, 'HTTP/1.1 503')
  t.equal(await beginCreate(bob).response, 'HTTP/1.1 100')
  t.equal((await alice.create({ id: 1, name: 'small' })).statusCode, 200)
  begun[0]?.socket.destroy()
  let response
  while ((response = await beginCreate(alice).response) === 'HTTP/1.1 503');
  t.equal(response, 'HTTP/1.1 100', 'the memory is released when the client disconnects')
})

t.test('the files of the reference page are compressed and have ETags', async (t) => {
  const { app } = await startApp(t)
  const url = '/docs/scalar.js'
  const [plain, packed] = await Promise.all([
    app.inject(url), app.inject({ url, headers: { 'accept-encoding': 'gzip, br' } })
  ])
  t.match(packed.headers, {
    'content-encoding': 'gzip',
    'content-type': 'text/javascript; charset=utf-8',
    vary: 'accept-encoding',
    'cache-control': /max-age/
  })
  t.ok(packed.rawPayload.length < plain.rawPayload.length / 2)
  t.same(plain.headers['content-encoding'], undefined)
  t.not(plain.headers.etag, packed.headers.etag)
  for (const { headers: { etag }, encoding } of [
    { ...plain, encoding: 'gzip;q=0' }, { ...packed, encoding: 'gzip' }
  ]) {
    const again = await app.inject({
      url: `${url}?x`, headers: { 'if-none-match': etag as string, 'accept-encoding': encoding }
    })
    t.match(again, { statusCode: 304, body: '', headers: { etag } })
  }
  t.equal((await app.inject({ method: 'HEAD', url })).headers['content-length'],
    String(plain.rawPayload.length))
  t.equal((await app.inject('/docs/nothing.js')).statusCode, 404)
})

t.test('the service begins to send few files of the reference page per tick', async (t) => {
  const { app, listen } = await startApp(t)
  const address = await listen()
  const sockets: Socket[] = []
  app.server.on('connection', (socket: Socket) => { sockets.push(socket) })
  const countBegun = () => sockets.filter(({ bytesWritten }) => bytesWritten > 0).length
  const clients = Array.from({ length: 20 }, () => open(t, address).pause())
  for (const client of clients) client.write('GET /docs/scalar.js HTTP/1.1\r\nHost: x\r\n\r\n')
  let most = 0
  for (let before = 0, now = 0; now < clients.length; before = now) {
    await new Promise(setImmediate)
    now = countBegun()
    most = Math.max(most, now - before)
  }
  t.ok(most <= 4, `${most}`)
})

t.test('HEAD requests for the reference page leave no work that delays later ones', async (t) => {
  const { app } = await startApp(t)
  const head = () => app.inject({ method: 'HEAD', url: '/docs/scalar.js' })
  await head()
  let ticks = 0
  let timer = setImmediate(function count () {
    ticks++
    timer = setImmediate(count)
  })
  for (let sent = 0; sent < 100; sent++) await head()
  clearImmediate(timer)
  t.ok(ticks < 500, `${ticks}`)
})

t.test('a request in flight when a shutdown begins gets its response with Connection: close', async (t) => {
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

t.test('neither an unread list nor an unfinished body delays a shutdown', async (t) => {
  const { app, as, listen, url } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  await sql(url,
    "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")
  const send = async (text: string) => {
    const accepted = once(app.server, 'connection') as Promise<[Socket]>
    open(t, address).pause().write(text)
    return (await accepted)[0]
  }
  const lister = await send(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
  const creator = await send(
    `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
      'Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{'
  )
  while (lister.writableLength === 0 || creator.bytesRead === 0) await new Promise(setImmediate)
  // A shutdown shortens the timeouts. Otherwise `close` would wait for the request timeout of 30 s.
  await app.close()
  t.ok(lister.destroyed && creator.destroyed)
})

t.test('a shutdown force-closes a slow list at forceCloseAt and logs a warning', async (t) => {
  const { app, as, listen, url, lifecycle, log } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  await sql(url,
    "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")
  const lister = open(t, address).pause()
  lister.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
  await once(lister, 'readable')
  // The client reads so slowly that the whole list would take some 15 s.
  const reading = setInterval(() => { lister.read(65_536) }, 50)
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
