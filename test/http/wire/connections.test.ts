// Tests what happens on a connection: requests before a response, half-closed clients, bad input, timeouts.
import { once } from 'node:events'
import { connect, type AddressInfo, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { createToken } from '../../../src/access/tokens.ts'
import { openSession, sql } from '../../support/database.ts'
import { exchange, parseResponses } from '../../support/raw.ts'
import { isError } from '../../support/error-response.ts'

const { app, as, url, listen, log, metricsUrl } = await startApp(t, { METRICS_PORT: '0' })
const address = await listen()
const alice = await as('alice')
const headers = `Host: x\r\nAuthorization: ${alice.authorization}\r\n`
const request = (line: string, extra = '') => `${line} HTTP/1.1\r\n${headers}${extra}\r\n`
const list = (query = '') => request(`GET /plants${query}`)
/** This list does not fit into the buffers of a socket. */
const longList = list().replace(alice.authorization, (await as('bob')).authorization)
await sql(url, "insert into plants select 'bob', id, repeat('x', 4000) from generate_series(1, 5000) as id")
const type = 'Content-Type: application/json\r\n'
const chunked = 'Transfer-Encoding: chunked\r\n'
const create = (id: number, extra = '') => {
  const body = `{"id":${id},"name":"n"}`
  return request('POST /plants', `${type}${extra}Content-Length: ${body.length}\r\n`) + body
}
const tunnel = 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n'
const ids = async () => (await sql(url, 'select id::int from plants where id > 5000')).map(({ id }) => id)

/** `client` is the client's socket, and `socket` is the service's socket. */
async function open (): Promise<{ client: Socket, socket: Socket }> {
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const { hostname, port } = new URL(address)
  // The socket emits 'error' if the service resets the connection.
  const client = connect({ host: hostname, port: Number(port), allowHalfOpen: true }).on('error', () => {})
  const [[socket]] = await Promise.all([accepted, once(client, 'connect')])
  return { client, socket }
}

/** Opens a connection with a response in flight: the client does not read its long list. */
async function openStalled (): Promise<{ client: Socket, socket: Socket }> {
  const { client, socket } = await open()
  client.pause().write(longList)
  while (socket.writableLength === 0) await new Promise(setImmediate)
  return { client, socket }
}

/** Sends each segment after the service has read the segment before it. */
async function sendSegments ({ client, socket }: { client: Socket, socket: Socket }, segments: string[]) {
  for (const segment of segments) {
    const end = socket.bytesRead + segment.length
    client.write(segment)
    while (socket.bytesRead < end && !socket.destroyed) await new Promise(setImmediate)
  }
}

t.afterEach(() => sql(url, "delete from plants where owner = 'alice'"))

t.test('of requests sent at once only the first runs, and its response closes the connection', async (t) => {
  const expecting = create(6001, 'Expect: 100-continue\r\n')
  for (const first of [list('?limit=1'), create(6001), expecting]) {
    const second = create(6002)
    for (const rest of [second, second.slice(0, -3), second.repeat(40), 'garbage\r\n\r\n']) {
      for (const halfClose of [false, true]) {
        const responses = await exchange(address, [first + rest], { halfClose })
        const last = responses.filter(({ status }) => status !== 100)
        t.match(last, [{ status: 200, headers: { connection: 'close' } }], (first + rest).slice(0, 300))
        t.equal(last.length, 1)
        t.same(await ids(), first.startsWith('GET') ? [] : [6001])
        await sql(url, "delete from plants where owner = 'alice'")
      }
    }
  }
  // Node's own response to CONNECT is the end of the connection.
  await exchange(address, [tunnel + create(6001)]).catch(() => {})
  t.same(await ids(), [])
})

t.test('requests sent one after the other run on one connection', async (t) => {
  const connection = await open()
  const received: Buffer[] = []
  connection.client.on('data', (chunk: Buffer) => { received.push(chunk) })
  for (let id = 6001; id <= 6040; id++) {
    const response = once(connection.client, 'data')
    await sendSegments(connection, [create(id)])
    await response
  }
  connection.client.end()
  await once(connection.client, 'end')
  t.match(parseResponses(Buffer.concat(received)),
    Array(40).fill({ status: 200, headers: { connection: 'keep-alive' } }))
})

t.test('what arrives before the end of a long response does not run, and is not buffered', async (t) => {
  const { client, socket } = await openStalled()
  const rest = Buffer.alloc(1_000_000, 'x')
  client.write(request('POST /plants', `${type}Content-Length: ${rest.length}\r\n`))
  client.write(rest)
  // While the client reads parts of the list, the service must not read the whole body.
  for (let part = 0; part < 20; part++) {
    client.read()
    await once(client, 'readable')
  }
  t.ok(socket.bytesRead < 200_000, `${socket.bytesRead}`)
  // The response to the list is complete, and the last one.
  t.match((await buffer(client)).toString('latin1').slice(-20), /\]\r\n0\r\n\r\n$/)
  client.end()
  // Unread input would reset the connection, and the client might lose the list.
  while (!socket.destroyed) await new Promise(setImmediate)
  t.ok(socket.bytesRead > rest.length)
})

t.test('the 101st ignored request ends the connection', async (t) => {
  const { client, socket } = await openStalled()
  client.write(create(6001).repeat(100))
  await new Promise(setImmediate)
  t.notOk(socket.destroyed)
  client.write(create(6001).repeat(300))
  await buffer(client).catch(() => {})
  while (!socket.destroyed) await new Promise(setImmediate)
  client.destroy()
  t.same(await ids(), [])
})

t.test('a request that wants the end of the connection is the last one', async (t) => {
  const offer = 'Connection: Upgrade\r\nUpgrade: h2c\r\n'
  const inner = request('DELETE /plants/1')
  await alice.create('{"id":1,"name":"kept"}')
  for (const segments of [
    [request('GET /livez', 'Connection: close\r\n') + create(6001)],
    [request('GET /livez', 'proxy-connection: keep-alive, CLOSE\r\n'), create(6001)],
    [request('GET /livez', offer) + inner], [request('GET /livez', offer)],
    // Node's parser drops what follows the body of an upgrade request in the same segment.
    [request('POST /plants', `${offer}${type}Content-Length: 19\r\n`), `{"id":2,"name":"n"}${create(6001)}`,
      inner],
    [request('GET /livez', offer).slice(0, -1), '\nXY', inner]
  ]) {
    const connection = await open()
    const received = buffer(connection.client)
    await sendSegments(connection, segments)
    const responses = parseResponses(await received)
    t.match(responses, [{ status: 200, headers: { connection: 'close' } }], segments.join().slice(0, 100))
    t.equal(responses.length, 1)
    connection.client.end()
  }
  t.same(await ids(), [])
  t.same(await sql(url, "select name from plants where owner = 'alice' and id = 1"), [{ name: 'kept' }])
})

t.test('a response before the end of the body closes the connection', async (t) => {
  const body = `${type}Content-Length: 19\r\n`
  const unknown = body + 'Authorization: x\r\n'
  for (const [head, status] of [
    [request('POST /nothing', body), 404], [request('PUT /plants', body), 405],
    [request('POST /plants', body.replace('19', '16385')), 400], [request('GET /livez', body), 200],
    [request('POST /plants', unknown), 401], [request('POST /plants', body + 'Expect: x\r\n'), 417],
    [request('POST /plants', type + 'Content-Encoding: gzip\r\n' + chunked), 400]
  ] as const) {
    t.match(await exchange(address, [head]), [{ status, headers: { connection: 'close' } }], head)
  }
  for (const text of [
    request('POST /plants', `${type}Content-Length: 1\r\n`) + 'x',
    request('POST /nothing', `${type}Content-Length: 0\r\n`)
  ]) {
    const { client } = await open()
    client.write(text)
    t.match(await once(client, 'data').then(String), /\r\nconnection: keep-alive\r\n/i, text)
    client.destroy()
  }
})

t.test('a client that is still sending can read its response', async (t) => {
  const tooLarge = [40006, 'The body is larger than this service accepts: at most 16384 bytes.'] as const
  const big = Buffer.alloc(8_000_000, 'x')
  const byLength = `Content-Length: ${big.length}\r\n`
  const post = (extra: string) => request('POST /plants', type + extra)
  const cases: Array<[parts: Array<string | Buffer>, error: readonly [number, string]]> = [
    [[post(byLength), big], tooLarge],
    [[`${post(chunked)}${big.length.toString(16)}\r\n`, big, '\r\n0\r\n\r\n'], tooLarge],
    [[post(byLength).replace('1.1', '1.0'), big], tooLarge],
    [[`${post(chunked)}1;`, big], tooLarge],
    [[`${post(byLength).slice(0, -2)}X: `, big], [43101, 'The headers are too large.']],
    [[big], [40001, 'The request is not well-formed HTTP/1.1.']]
  ]
  for (const [parts, error] of cases) {
    const responses = await exchange(address, parts)
    isError(t, responses[0], ...error)
    t.match(responses, [{ headers: { connection: 'close' } }])
    t.equal(responses.length, 1)
  }
})

t.test('a rejected connection is closed on both sides, also if the client goes on sending', async (t) => {
  const logged = log.length
  for (const isHalfOpen of [true, false]) {
    const { client, socket } = await open()
    client.resume().on('end', () => { if (!isHalfOpen) client.end() }).write('garbage\r\n\r\n')
    await once(socket, 'close')
    t.equal(socket.errored, null)
    client.destroy()
  }
  const { client, socket } = await open()
  client.write('garbage\r\n\r\n')
  const drip = setInterval(() => client.write('x'), 20)
  t.match(parseResponses(await buffer(client)), [{ status: 400 }])
  // The service reads on for five seconds. The connection has traffic all the time.
  await once(socket, 'close')
  clearInterval(drip)
  const rejections = log.slice(logged).filter((line) => JSON.parse(line).error === 40001)
  t.equal(rejections.length, 3, 'each rejection has one line')
})

t.test('a client that disconnects at any point causes no error and no warning', async (t) => {
  const beginnings = [
    '', 'GET', list(), list() + list(), 'garbage\r\n\r\n', `${list()}garbage\r\n\r\n`, tunnel,
    list() + tunnel, create(6001, 'Expect: banana\r\n'), create(6001).slice(0, -3),
    `${request('POST /plants', type + chunked)}5\r\n{`
  ]
  for (const method of ['resetAndDestroy', 'destroy'] as const) {
    await Promise.all(beginnings.map(async (beginning) => {
      const { client } = await open()
      client.write(beginning)
      await once(client[method](), 'close')
    }))
  }
  t.equal((await alice.list()).statusCode, 200)
  const series = async () => (await fetch(metricsUrl)).text()
  while (!/^http_requests_in_flight 0$/m.test(await series())) await delay(100)
  t.match(await series(), /^http_request_duration_seconds_count\{.*status="499"\} [1-9]/m)
  const lines = log.map((line) => JSON.parse(line))
  t.same(lines.filter(({ level }) => /warn|error|fatal/.test(level)), [])
})

t.test('an idle connection ends after KEEP_ALIVE_TIMEOUT', async (t) => {
  const { listen } = await startApp(t, { DATABASE_URL: url, KEEP_ALIVE_TIMEOUT: '1s' })
  const responses = await exchange(await listen(), ['GET /livez HTTP/1.1\r\nHost: x\r\n\r\n'])
  t.match(responses, [{ status: 200, headers: { 'keep-alive': 'timeout=1' } }])
})

t.test('slow requests time out', async (t) => {
  const { headersTimeout, requestTimeout, timeout, keepAliveTimeout } = app.server
  t.strictSame({ headersTimeout, requestTimeout, timeout, keepAliveTimeout },
    { headersTimeout: 15_000, requestTimeout: 30_000, timeout: 60_000, keepAliveTimeout: 75_000 })
  // Node reads these timeouts at every check for late requests, so the new values apply at once.
  Object.assign(app.server, { headersTimeout: 200, requestTimeout: 400 })
  t.teardown(() => Object.assign(app.server, { headersTimeout, requestTimeout }))
  const post = (extra: string) => request('POST /plants', type + extra)

  /** Sends `start`, then `drop` every 20 ms until the service ends the connection. */
  async function trickle (start: string, drop: string) {
    const { client } = await open()
    client.write(start)
    const drip = setInterval(() => client.write(drop), 20)
    const received = await buffer(client)
    clearInterval(drip)
    client.destroy()
    return parseResponses(received).map(({ status }) => status)
  }
  const [rejected, ...late] = await Promise.all([
    trickle(request('POST /plants', chunked + 'Authorization: x\r\n'), '1\r\n \r\n'),
    trickle('', ''), trickle('GET /pl', ''), trickle('GET /plants HTTP/1.1\r\nX: ', 'x'),
    trickle(create(6001).slice(0, -1), ''), trickle(post('Content-Length: 10000\r\n'), ' '),
    trickle(post(chunked), '1\r\n \r\n')
  ])
  t.same(late, Array(6).fill([408]))
  t.same(rejected, [401], 'the request has a response already')
  const { client } = await openStalled()
  const failed = once(app.server, 'clientError')
  client.write('GET /pl')
  await failed
  t.match(parseResponses(await buffer(client)), [{ status: 200 }])
  client.destroy()
  t.same(await ids(), [])
})

t.test('a client that stops reading is disconnected', async (t) => {
  for (const behind of ['', list(), 'garbage\r\n\r\n']) {
    const { client, socket } = await openStalled()
    client.write(behind)
    t.equal(socket.timeout, 60_000, behind)
    socket.setTimeout(200)
    await once(socket, 'close')
    client.destroy()
  }
})

t.test('a connection beyond MAX_CONNECTIONS is closed at once, until another has closed', async (t) => {
  const { app, log, metricsUrl } = await startApp(t, { MAX_CONNECTIONS: '2', METRICS_PORT: '0' })
  // As HOST=:: does, listen on IPv6 and IPv4: sockets then report IPv4 addresses as ::ffff:127.0.0.1.
  await app.listen({ host: '', port: 0 })
  const { port } = app.server.address() as AddressInfo
  const clients = Array.from({ length: 3 }, () =>
    connect(port, '127.0.0.1').on('error', () => {}).resume())
  // The service accepts the connections in their order.
  await once(clients[2] as Socket, 'close')
  t.match(log.map((line) => JSON.parse(line)).find(({ error }) => error === 50302),
    { level: 'warn', reason: 'too many connections', remoteAddress: /^127\.0\.0\.1$/ })
  t.match(await (await fetch(metricsUrl)).text(),
    /^plant_store_overload_refusals_total\{kind="connection"\} 1$/m)
  for (const client of clients) client.destroy()
  while (!await fetch(`http://127.0.0.1:${port}/livez`).catch(() => false));
})

t.test('a body that is malformed, cut or late is one error in the log', async (t) => {
  const { app, as, listen, log, url } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  const post = (token: string, framing: string) => 'POST /plants HTTP/1.1\r\nHost: x\r\n' +
    `Authorization: ${token}\r\nContent-Type: application/json\r\n${framing}\r\n\r\n`
  const [chunked, partial] = ['Transfer-Encoding: chunked', `${post(authorization, 'Content-Length: 9')}1`]
  const logged = () => log.flatMap((line) => JSON.parse(line).error ?? [])

  // Let the service cache the token.
  await fetch(`${address}/plants`, { headers: { authorization } })
  await exchange(address, [`${post(authorization, chunked)}x`])
  await exchange(address, [partial], { halfClose: true })
  t.same(logged(), [40001, 40001])

  const { hostname, port } = new URL(address)
  const accepted = once(app.server, 'request')
  const client = connect(Number(port), hostname)
  client.write(partial)
  await accepted
  client.resetAndDestroy()
  while (logged().length < 3) await new Promise(setImmediate)
  t.match(log.map((line) => JSON.parse(line)).findLast(({ error }) => error === 40001),
    { reason: 'ECONNRESET', user: 'alice', remoteAddress: '127.0.0.1' })

  // The malformed body arrives before the look-up of the token ends.
  const session = await openSession(t, url, 'begin; lock table tokens in access exclusive mode')
  const failed = once(app.server, 'clientError')
  const malformed = exchange(address, [`${post(`Bearer ${createToken()}`, chunked)}x`])
  await failed
  await session.query('commit')
  t.match(await malformed, [{ status: 401, headers: { connection: 'close' } }])
  t.same(logged(), [40001, 40001, 40001, 40102])

  app.server.headersTimeout = app.server.requestTimeout = 100
  t.match(await exchange(address, [partial]), [{ status: 408 }])
  t.same(logged(), [40001, 40001, 40001, 40102, 40801])
})
