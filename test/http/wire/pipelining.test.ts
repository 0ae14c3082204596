// Tests pipelining: clients send several requests without waiting for responses.
import { AsyncLocalStorage } from 'node:async_hooks'
import { once } from 'node:events'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import t from 'tap'
import { createServer } from '../../../src/http/wire/server.ts'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { exchange, parseResponses } from '../../support/raw.ts'

const { app, as, url, listen, log } = await startApp(t, { BODY_LIMIT: '1048576' })
const address = await listen()
const alice = await as('alice')
const headers = `Host: x\r\nAuthorization: ${alice.authorization}\r\n`
const request = (line: string, extra = '') => `${line} HTTP/1.1\r\n${headers}${extra}\r\n`
const list = (query = '') => request(`GET /plants${query}`)
const create = (id: number, name = 'n') => {
  const body = `{"id":${id},"name":"${name}"}`
  return request('POST /plants',
    `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n`) + body
}
const last = request('GET /livez', 'Connection: close\r\n')
const completed = () => log.filter((line) => JSON.parse(line).msg === 'request completed').length

t.beforeEach(() => sql(url, 'delete from plants'))

/** `client` is the client's socket, and `socket` is the service's socket. */
async function open (): Promise<{ client: Socket, socket: Socket }> {
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const { hostname, port } = new URL(address)
  const client = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  const [socket] = await accepted
  return { client, socket }
}

/** Stores so many plants that their list does not fit into the socket buffers. */
const makeLongList = () =>
  sql(url, "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")

/** Resolves when the service can send nothing more, because the client does not read. */
async function untilStalled (socket: Socket): Promise<void> {
  while (socket.writableLength === 0) await new Promise(setImmediate)
}

t.test('a request starts when the response before it is complete', async (t) => {
  await makeLongList()
  const before = completed()
  const { client, socket } = await open()
  client.pause().write(list() + list('?limit=1') + create(0) + list('?limit=1') + last)
  await untilStalled(socket)
  t.same(await sql(url, 'select from plants where id = 0'), [])
  const responses = parseResponses(await buffer(client))
  client.end()
  const [first, second, , fourth] = responses.map(({ body }) => JSON.parse(body))
  t.equal(first.length, 5000)
  t.same([second, fourth].map(([plant]) => plant.name.length), [4000, 1])
  t.same(responses.map(({ status }) => status), Array(5).fill(200))
  t.equal(completed() - before, 5)
})

t.test('requests take effect in order, and an error that ends the connection comes last', async (t) => {
  for (const [end, number] of [
    ['garbage\r\n\r\n', 40001],
    [`GET /livez HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`, 43101],
    [create(3).slice(0, -10).replace(/Content-Length.*/, 'Transfer-Encoding: chunked'), 40001]
  ] as const) {
    for (const halfClose of [true, false]) {
      await sql(url, 'delete from plants')
      const sent = list() + create(1) + list() + end + create(2)
      const bodies = (await exchange(address, [sent], { halfClose })).map(({ body }) => JSON.parse(body))
      t.match(bodies.pop(), { error: number }, end.slice(0, 20))
      t.same(bodies, [[], { name: 'n' }, [{ name: 'n' }]])
      t.same(await sql(url, 'select id::int from plants'), [{ id: 1 }])
    }
  }
})

t.test('a connection that closes while requests are queued reads on', async (t) => {
  const rest = 1_000_000
  for (const [sent, status] of [
    [list().repeat(20), 200], [list().repeat(3) + 'garbage\r\n\r\n', 400],
    [last + create(1) + create(2), 200]
  ] as const) {
    const { client, socket } = await open()
    const received: Buffer[] = []
    client.on('data', (chunk: Buffer) => { received.push(chunk) }).write(sent)
    await once(client, 'end')
    client.end(create(3, 'x'.repeat(rest)))
    t.match(parseResponses(Buffer.concat(received)).at(-1), { status, headers: { connection: 'close' } })
    while (!socket.destroyed) await new Promise(setImmediate)
    t.ok(socket.bytesRead > rest, `${sent.slice(-40)}: ${socket.bytesRead}`)
  }
  t.same(await sql(url, 'select from plants'), [])
})

t.test('an upgrade request with others behind it ends the connection', async (t) => {
  // Node discards the requests that follow an upgrade request in the same chunk.
  const offer = request('GET /livez', 'Connection: upgrade\r\nUpgrade: h2c\r\n')
  for (const text of [offer + create(1), list() + offer + create(1)]) {
    const responses = await exchange(address, [text])
    t.equal(responses.at(-1)?.headers.connection, 'close')
    t.same(responses.map(({ status }) => status), text === offer + create(1) ? [200] : [200, 200])
  }
  t.same(await sql(url, 'select from plants'), [])
  const [alone] = await exchange(address, [offer])
  t.match(alone, { status: 200, headers: { connection: 'close' } })
})

t.test('a request with Proxy-Connection: close is the last one of its connection', async (t) => {
  for (const field of ['Proxy-Connection: close', 'proxy-connection: keep-alive, CLOSE']) {
    const responses = await exchange(address, [request('GET /livez', `${field}\r\n`) + create(1)])
    t.match(responses, [{ status: 200, headers: { connection: 'close' } }])
    t.equal(responses.length, 1)
  }
  t.same(await sql(url, 'select from plants'), [])
})

t.test('queued requests of a reset connection are not executed', async (t) => {
  await makeLongList()
  const { client, socket } = await open()
  client.pause().write(list() + create(9999))
  await untilStalled(socket)
  client.resetAndDestroy()
  // `once` would reject, because the reset also emits 'error'.
  await new Promise((resolve) => socket.on('close', resolve))
  t.equal((await alice.list('?limit=1')).statusCode, 200)
  t.same(await sql(url, 'select from plants where id = 9999'), [])
})

t.test('the service does not buffer the body of a queued request', async (t) => {
  await makeLongList()
  const { client, socket } = await open()
  client.pause().write(list())
  await untilStalled(socket)
  const size = 1_000_000
  client.write(create(9999, 'x'.repeat(size)) + last)
  // While the client reads parts of the list, the service must not read the whole queued body.
  for (let part = 0; part < 20; part++) {
    client.read()
    await once(client, 'readable')
    await new Promise(setImmediate)
  }
  t.ok(socket.bytesRead < 200_000, `${socket.bytesRead}`)
  const afterList = (await buffer(client)).toString('latin1').split(']\r\n0\r\n\r\n').at(-1)
  client.end()
  t.match(afterList, /HTTP\/1.1 200 .*HTTP\/1.1 200 /s)
  t.same(await sql(url, 'select length(name) from plants where id = 9999'), [{ length: size }])
})

t.test('the 17th request in one segment ends the connection', async (t) => {
  const segment = list('?limit=0').repeat(99) + create(1)
  for (const behind of ['', create(2), 'garbage\r\n\r\n']) {
    const before = completed()
    const { client, socket } = await open()
    const received = buffer(client)
    client.write(segment)
    while (socket.bytesRead < segment.length) await new Promise(setImmediate)
    client.end(behind)
    const responses = parseResponses(await received)
    t.same(responses.map(({ status, headers: { connection } }) => [status, connection]),
      Array.from({ length: 17 }, (_, index) => [200, index === 16 ? 'close' : 'keep-alive']))
    t.same(await sql(url, 'select from plants'), [])
    t.equal(completed() - before, 17)
  }
})

t.test('the 101st ignored request ends the connection, even during a response', async (t) => {
  const done = completed()
  const { client, socket } = await open()
  client.on('error', () => {}).resume().write(list().repeat(18))
  await once(client, 'end')
  client.write(list().repeat(100))
  // The client does not close the connection.
  await once(socket, 'close')
  t.equal(completed() - done, 17)
  client.destroy()

  await makeLongList()
  const stalled = await open()
  stalled.client.on('error', () => {}).pause().write(list())
  await untilStalled(stalled.socket)
  stalled.socket.once('timeout', () => t.fail('only the timeout ended the connection'))
  stalled.client.write(create(9999).repeat(118))
  await once(stalled.socket, 'close')
  stalled.client.destroy()
  t.same(await sql(url, 'select from plants where id = 9999'), [])
})

t.test('any number of requests get a response when the client waits until they are read', async (t) => {
  const { client, socket } = await open()
  const received = buffer(client)
  const part = list('?limit=0').repeat(10)
  for (let sent = 0; sent < 10 * part.length;) {
    client.write(part)
    sent += part.length
    while (socket.bytesRead < sent) await new Promise(setImmediate)
  }
  client.end(last)
  t.equal(parseResponses(await received).length, 101)
})

t.test('no bytes of a body run as a request, however an upgrade request is cut into segments', async (t) => {
  const inner = request('DELETE /plants/1')
  const upgrade = 'Connection: Upgrade\r\nUpgrade: h2c\r\n'
  const body = '{"id":2,"name":"n"}'
  const json = `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n`
  const second = request('POST /plants', json.replace(/\d+/, String(inner.length)))
  for (const segments of [
    // Node's parser drops what follows the body of an upgrade request in the same chunk.
    [request('POST /plants', upgrade + json), body + second, inner],
    [request('GET /livez', upgrade).slice(0, -1), '\nXY', inner]
  ]) {
    await alice.create('{"id":1,"name":"kept"}')
    const { client, socket } = await open()
    const received = buffer(client)
    let sent = 0
    for (const segment of segments) {
      client.write(segment)
      sent += segment.length
      while (socket.bytesRead < sent) await new Promise(setImmediate)
    }
    t.match(parseResponses(await received), [{ status: 200, headers: { connection: 'close' } }])
    client.end()
    t.same(await sql(url, 'select name from plants where id = 1'), [{ name: 'kept' }])
  }
})

t.test('a late request behind an unread response gets no 408: it is not executed', async (t) => {
  await makeLongList()
  const { headersTimeout, requestTimeout } = app.server
  Object.assign(app.server, { headersTimeout: 500, requestTimeout: 500 })
  t.teardown(() => Object.assign(app.server, { headersTimeout, requestTimeout }))
  const late = create(9999, 'x'.repeat(1_000_000))
  for (const [behind, count] of [[late, 1], [late.slice(0, 20), 1], [list('?limit=0') + late, 2]] as const) {
    const { client, socket } = await open()
    client.pause().write(list())
    await untilStalled(socket)
    client.write(behind)
    await once(app.server, 'clientError')
    t.same(parseResponses(await buffer(client)).map(({ status }) => status), Array(count).fill(200))
    client.end()
    while (!socket.destroyed) await new Promise(setImmediate)
    // Unread input would reset the connection, and the client might lose the list.
    t.equal(socket.bytesRead, client.bytesWritten)
  }
  t.same(await sql(url, 'select from plants where id = 9999'), [])
})

t.test('a waiting request runs in an asynchronous context of its own', async (t) => {
  const storage = new AsyncLocalStorage<number>()
  const seen: unknown[] = []
  const server = createServer({
    run (_request, response) {
      seen.push(storage.getStore())
      storage.run(seen.length, () => setImmediate(() => response.end()))
    },
    isLast: ({ url }) => url === '/last'
  }, 1).server.listen(0, '127.0.0.1')
  t.teardown(() => server.close())
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  const texts = ['/', '/', '/last'].map((path) => `GET ${path} HTTP/1.1\r\nHost: x\r\n\r\n`)
  t.equal((await exchange(`http://127.0.0.1:${port}`, texts)).length, 3)
  t.same(seen, [undefined, undefined, undefined])
})
