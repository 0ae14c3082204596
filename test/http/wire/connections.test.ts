import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { exchange, parseResponses } from '../../support/raw.ts'
import { isError } from '../../support/error-response.ts'

const tooLarge = [40006, 'The body is larger than this service accepts: at most 1048576 bytes.'] as const

const { app, as, url, listen, lifecycle, log, metricsUrl } =
  await startApp(t, { BODY_LIMIT: '1048576', METRICS_PORT: '0' })
const address = await listen()
const alice = await as('alice')
const headers = `Host: x\r\nAuthorization: ${alice.authorization}\r\n`
const list = (query = '') => `GET /plants${query} HTTP/1.1\r\n${headers}\r\n`
const post = `POST /plants HTTP/1.1\r\n${headers}Content-Type: application/json\r\n`
const create = `${post}Content-Length: 19\r\n\r\n{"id":1,"name":"n"}`
const connectMethod = 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n'

/** Stores so many plants that their list does not fit into the socket buffers. */
const makeLongList = () =>
  sql(url, "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")

/** `client` is the client's socket, and `socket` is the service's socket. */
async function open (): Promise<{ client: Socket, socket: Socket }> {
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const { hostname, port } = new URL(address)
  // The socket emits 'error' if the service resets the connection.
  const client = connect({ host: hostname, port: Number(port), allowHalfOpen: true }).on('error', () => {})
  const [[socket]] = await Promise.all([accepted, once(client, 'connect')])
  return { client, socket }
}

/** Sends `start`, then `drop` every 20 ms until the socket emits `last`. Resolves to all received text. */
async function trickle (start: string, drop: string, last: 'end' | 'close' = 'end'): Promise<string> {
  const { client } = await open()
  client.write(start)
  const drip = setInterval(() => client.write(drop), 20)
  let received = ''
  client.on('data', (chunk) => { received += chunk })
  await new Promise((resolve) => client.on(last, resolve))
  clearInterval(drip)
  client.end()
  return received
}

t.afterEach(() => sql(url, 'delete from plants'))

t.test('a malformed request gets one response, however much input follows it', async (t) => {
  const warnings = t.capture(process, 'emitWarning')
  const logged = log.length
  const { client, socket } = await open()
  // Don't use `text(client)`: when the service ends its side, Node 26 would destroy the client.
  let received = ''
  client.on('data', (chunk) => { received += chunk })
  let sent = 0
  for (const part of [`${list()}garbage\r\n\r\n`, ...Array<string>(30).fill('more\r\n\r\n')]) {
    client.write(part)
    for (sent += part.length; socket.bytesRead < sent;) await new Promise(setImmediate)
  }
  // Node emits clientError every second while a request is late. To save time, emit the events here.
  for (let second = 0; second < 30; second++) app.server.emit('clientError', new Error('late'), socket)
  client.end()
  await once(client, 'close')
  t.match(received, /^HTTP\/1.1 200 OK\r\n.*HTTP\/1.1 400 Bad Request\r\n/s)
  t.equal(received.split('HTTP/1.1 ').length, 3)
  t.equal(log.slice(logged).filter((line) => JSON.parse(line).error === 40001).length, 1)
  t.same(warnings.args(), [])
})

t.test('a client that is still sending can read its response', async (t) => {
  const big = Buffer.alloc(8_000_000, 'x')
  const ping = 'GET /livez HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
  const byLength = `Content-Length: ${big.length}\r\n\r\n`
  const cases: Array<[parts: Array<string | Buffer>, error: readonly [number, string], responses: number]> = [
    [[post + byLength, big, ping], tooLarge, 2],
    [[`${post}Transfer-Encoding: chunked\r\n\r\n${big.length.toString(16)}\r\n`, big, '\r\n0\r\n\r\n', ping],
      tooLarge, 2],
    [[`${post}Connection: close\r\n${byLength}`, big], tooLarge, 1],
    [[post.replace('1.1', '1.0') + byLength, big], tooLarge, 1],
    [[`${post}Transfer-Encoding: chunked\r\n\r\n1;`, big], tooLarge, 1],
    [[`${post}X: `, big], [43101, 'The headers are too large.'], 1],
    [[big], [40001, 'The request is not well-formed HTTP/1.1.'], 1]
  ]
  for (const [parts, error, count] of cases) {
    const responses = await exchange(address, parts)
    isError(t, responses[0], ...error)
    t.equal(responses.length, count)
  }
})

t.test('a rejected connection is closed on both sides, also if the client goes on sending', async (t) => {
  for (const isHalfOpen of [true, false]) {
    const { client, socket } = await open()
    client.resume().on('end', () => { if (!isHalfOpen) client.end() }).write('garbage\r\n\r\n')
    await once(socket, 'close')
    t.equal(socket.errored, null)
    client.destroy()
  }
  const { client, socket } = await open()
  client.write(connectMethod)
  await once(client.resume(), 'end')
  // Node emits this event after 2 s without traffic.
  socket.emit('timeout')
  t.ok(socket.destroyed)
  const received = await Promise.all(
    ['garbage\r\n\r\n', connectMethod].map((fault) => trickle(fault, 'x', 'close')))
  t.match(received, [/^HTTP\/1.1 400 /, /^HTTP\/1.1 501 /])
})

t.test('a client that disconnects at any point causes no error and no warning', async (t) => {
  const expecting = create.replace('Content-Type', 'Expect: banana\r\nContent-Type')
  const beginnings = [
    '', 'GET', list(), list() + list(), 'garbage\r\n\r\n', `${list()}garbage\r\n\r\n`, connectMethod,
    list() + connectMethod, expecting, list() + expecting, create.slice(0, -3),
    `${post}Transfer-Encoding: chunked\r\n\r\n5\r\n{"id"\r\n`
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
  const responses = await exchange(await listen(), [list(), list()])
  t.match(responses, Array(2).fill({ status: 200, headers: { 'keep-alive': 'timeout=1' } }))
})

t.test('slow requests time out', async (t) => {
  const { headersTimeout, requestTimeout, timeout, keepAliveTimeout } = app.server
  t.strictSame({ headersTimeout, requestTimeout, timeout, keepAliveTimeout },
    { headersTimeout: 15_000, requestTimeout: 30_000, timeout: 60_000, keepAliveTimeout: 75_000 })
  // Node reads these timeouts at every check for late requests, so the new values apply at once.
  Object.assign(app.server, { headersTimeout: 200, requestTimeout: 400 })
  t.teardown(() => Object.assign(app.server, { headersTimeout, requestTimeout }))
  const chunk = '1\r\n \r\n'
  const late = /HTTP\/1\.1 408 [^]*\r\ncontent-type: application\/json\r\n[^]*"error":40801,/
  const received = await Promise.all([
    trickle('', ''), trickle('GET /pl', ''), trickle('GET /plants HTTP/1.1\r\nX: ', 'x'),
    trickle(create.slice(0, -1), ''), trickle(`${post}Content-Length: 10000\r\n\r\n`, ' '),
    trickle(`${post}Transfer-Encoding: chunked\r\n\r\n`, chunk),
    trickle(`${list()}GET /plants HTTP/1.1\r\n`, ''), trickle(list() + list() + create.slice(0, -1), ''),
    trickle('POST /plants HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n', chunk)
  ])
  const rejected = received.pop()
  for (const text of received) t.match(text, late)
  t.strictSame(received.map((text) => text.match(/HTTP\/1\.1 \d+/g)?.length), [1, 1, 1, 1, 1, 1, 2, 3])
  t.match(rejected, /^HTTP\/1.1 401 /)
  t.notMatch(rejected, /HTTP\/1.1 408/, 'the request has a response already')
  t.strictSame(await sql(url, 'select from plants'), [])
})

t.test('a client that stops reading is disconnected', async (t) => {
  await makeLongList()
  for (const behind of ['', 'garbage\r\n\r\n']) {
    const { client, socket } = await open()
    client.pause().write(list() + behind)
    while (socket.writableLength === 0) await new Promise(setImmediate)
    t.equal(socket.timeout, 60_000, behind)
    socket.setTimeout(200)
    await once(socket, 'close')
    client.destroy()
  }
  t.equal((await alice.list('?limit=2')).json().length, 2)
})

t.test('a shutdown ends each connection with its next response, and waits for a list', async (t) => {
  const send = async (part: string) => {
    const { client, socket } = await open()
    client.write(part)
    while (socket.bytesRead < part.length) await new Promise(setImmediate)
    return { client, socket }
  }
  // The service must wait until the client reads.
  await makeLongList()
  const reading = await send(list() + list('?limit=1').repeat(2))
  while (reading.socket.writableLength === 0) await new Promise(setImmediate)
  const live = 'GET /livez HTTP/1.1\r\nHost: x\r\n'
  const idle = [
    await send(''), await send('GET /pl'), await send(`${live}\r\n`),
    await send(`${live}Content-Length: 100\r\n\r\nx`)
  ]
  for (const { client } of idle) client.resume().on('end', () => client.end())

  lifecycle.stopping = true
  for (const path of ['/livez', '/nowhere', '/x%zz', `/plants/${'1'.repeat(1001)}`]) {
    const [response] = await exchange(address, [`DELETE ${path} HTTP/1.1\r\n${headers}\r\n`])
    t.equal(response?.headers.connection, 'close', path)
  }
  const closed = app.close()
  const responses = parseResponses(await buffer(reading.client))
  t.strictSame(responses.map(({ headers: { connection }, body }) => [connection, JSON.parse(body).length]),
    [['keep-alive', 5000], ['close', 1]])
  reading.client.end()
  await closed
  for (const { socket } of idle) t.ok(socket.destroyed)
})

t.test('a shutdown closes the connections whose error responses wait for their turn', async (t) => {
  const { app, as, listen, lifecycle } = await startApp(t, { DATABASE_URL: url })
  const { hostname, port } = new URL(await listen())
  const { authorization } = await as('alice')
  let accepted = 0
  app.server.on('connection', () => { accepted++ })
  const clients = Array.from({ length: 100 }, () => connect(Number(port), hostname))
  while (accepted < clients.length) await new Promise(setImmediate)
  const received = Promise.all(clients.map((client) => buffer(client)))
  for (const client of clients) {
    client.write(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
      'Content-Type: application/json\r\nContent-Length: 1\r\n\r\nx')
  }
  // A tick sends 16 error responses.
  await Promise.race(clients.map((client) => once(client, 'readable')))
  lifecycle.stopping = true
  await app.close()
  const responses = (await received).flatMap((bytes) => parseResponses(bytes))
  t.same(responses.map(({ status }) => status), Array(100).fill(400))
  const closing = responses.filter(({ headers: { connection } }) => connection === 'close').length
  t.ok(closing > 20, `${closing} responses with Connection: close`)
})
