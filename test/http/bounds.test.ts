// Tests the limits on connections, unfinished bodies and unread responses.
import { once } from 'node:events'
import { createServer, IncomingMessage } from 'node:http'
import { connect, Socket } from 'node:net'
import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import type { HttpSocket } from '../../src/http/wire/node-internals.ts'
import { limitReads } from '../../src/http/wire/reads.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { startBlocked } from '../support/blocked.ts'
import { exchange } from '../support/raw.ts'

function open (t: Test, address: string): Socket {
  const { hostname, port } = new URL(address)
  const socket = connect(Number(port), hostname).on('error', () => {})
  t.teardown(() => { socket.destroy() })
  return socket
}

t.test('a connection beyond MAX_CONNECTIONS is closed at once, until another has closed', async (t) => {
  const { listen, log, metricsUrl } = await startApp(t, { MAX_CONNECTIONS: '2', METRICS_PORT: '0' })
  const address = await listen()
  const [first, second] = [open(t, address), open(t, address)]
  await Promise.all([once(first, 'connect'), once(second, 'connect')])
  await once(open(t, address).resume(), 'close')
  t.match(log.map((line) => JSON.parse(line)).find(({ error }) => error === 50302),
    { level: 'warn', reason: 'too many connections', remoteAddress: '127.0.0.1' })
  t.match(await (await fetch(metricsUrl)).text(),
    /^plant_store_overload_refusals_total\{kind="connection"\} 1$/m)
  first.destroy()
  while (!await fetch(`${address}/livez`).catch(() => false));
})

t.test('a body that does not fit in the memory budget is rejected before it is read', async (t) => {
  const { as, listen } = await startApp(t, { MEMORY_BUDGET: '16777216' })
  const address = await listen()
  const [alice, bob] = await Promise.all([as('alice'), as('bob')])

  /** Sends the head of a create, but no body. By default the head announces a body of 128 KiB. */
  function beginCreate ({ authorization }: typeof alice, framing = 'Content-Length: 131072') {
    const socket = open(t, address)
    socket.write('POST /plants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
      `Expect: 100-continue\r\nAuthorization: ${authorization}\r\n${framing}\r\n\r\n`)
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
  // The service releases the memory of clients that disconnect. One body would not suffice: since bob's body,
  // less memory is free, so one user may hold less.
  for (const { socket } of begun.slice(0, 2)) socket.destroy()
  while (await beginCreate(alice).response !== 'HTTP/1.1 100');
})

t.test('at its deadline, a shutdown cuts lists that wait for the database, but no create', async (t) => {
  const { app, alice: { authorization }, lifecycle, listen, sendBlocked, unblock } =
    await startBlocked(t, {}, 'lock table plants in access exclusive mode')
  const address = await listen()
  const head = `/plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n`
  const plant = 'Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{"id":1,"name":"n"}'
  const requests = [`POST ${head}${plant}`, `GET ${head}\r\n`, `HEAD ${head}\r\n`]
  const [created, ...lists] =
    await sendBlocked(...requests.map((request) => () => exchange(address, [request]).catch(() => [])))
  Object.assign(lifecycle, { forceCloseAt: performance.now() })
  const closed = app.close()
  t.same(await Promise.all(lists), [[], []])
  await unblock()
  t.match(await created, [{ status: 200, headers: { connection: 'close' } }])
  await closed
})

t.test('a shutdown waits for no unread list and no unfinished body, and cuts a slow list', async (t) => {
  for (const isSlow of [false, true]) {
    const { app, as, lifecycle, listen, log, url } = await startApp(t)
    const address = await listen()
    const { authorization } = await as('alice')
    await sql(url,
      "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")
    const client = open(t, address).pause()
    client.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
    await once(client, 'readable')
    const body = open(t, address)
    body.write(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
      'Content-Type: application/json\r\nExpect: 100-continue\r\nContent-Length: 9\r\n\r\n')
    await once(body, 'data')
    // A slow client reads so slowly that the whole list would take some 15 s.
    const reading = setInterval(() => { if (isSlow) client.read(65_536) }, 50)
    t.teardown(() => clearInterval(reading))
    if (isSlow) Object.assign(lifecycle, { forceCloseAt: performance.now() + 100 })
    // Without these limits, `close` would wait for the request timeout of 30 s.
    await app.close()
    const cut = /"connections":\d,"msg":"the shutdown cuts unfinished reads and bodies"/
    t.equal(cut.test(log.at(-1) as string), isSlow)
  }
})

t.test('error responses and files of /docs are spread over several ticks', async (t) => {
  const { app } = await startApp(t)
  await app.ready()
  let tick = 0
  let counting = setImmediate(function count () {
    tick++
    counting = setImmediate(count)
  })
  t.teardown(() => clearImmediate(counting))
  for (const [url, status, most] of [['/nowhere', 404, 16], ['/docs/scalar.js', 200, 2]] as const) {
    const ticks = new Map<number, number>()
    await Promise.all(Array.from({ length: 200 }, async () => {
      t.equal((await app.inject({ method: 'HEAD', url })).statusCode, status)
      ticks.set(tick, (ticks.get(tick) ?? 0) + 1)
    }))
    t.ok(Math.max(...ticks.values()) <= most, [...ticks.values()].join())
  }
})

/** Emits the events of a server: real connections may deliver their requests in several ticks. */
function startReads () {
  const server = createServer()
  const connect = (length: number) => Array.from({ length }, (): HttpSocket => {
    const socket = new Socket()
    server.emit('connection', socket)
    return socket
  })
  const request = (sockets: HttpSocket[]) => {
    for (const socket of sockets) server.emit('request', new IncomingMessage(socket))
  }
  return { server, count: limitReads(server), connect, request }
}
const paused = (sockets: HttpSocket[]) => sockets.filter((socket) => socket.isPaused()).length

t.test('a tick reads 16 first requests, and closed connections take no turn of a later burst', async (t) => {
  const { server, connect, request } = startReads()
  const first = connect(15)
  const [last] = connect(1) as [HttpSocket]
  const closing = connect(16)
  const waiting = connect(18)
  // Only the first request of a connection counts.
  request([...first, ...first])
  t.equal(paused(waiting), 0)
  server.emit('clientError', new Error('malformed'), last)
  t.equal(paused([...closing, ...waiting]), 34)
  t.equal(paused([...first, last]), 0)
  for (const socket of closing) socket.destroy()
  const resumed: number[] = []
  for (let tick = 1; tick <= 5; tick++) {
    await nextTick()
    resumed.push(18 - paused(waiting))
  }
  t.same(resumed, [0, 0, 8, 16, 18])

  request(connect(16))
  t.equal(paused(waiting), 18)
  await nextTick()
  t.equal(paused(waiting), 10)
})

t.test('after 512 KiB of bodies in a tick, large bodies wait for other connections', async (t) => {
  const { count, connect, request } = startReads()
  const [large, small] = [connect(40), connect(8)]
  for (const socket of [...large, ...small]) {
    request([socket])
    await nextTick()
  }
  for (const socket of large) count(socket, 2048)
  for (const socket of small) count(socket, 2047)
  const [one] = large as [HttpSocket]
  count(one, 524_288 - 40 * 2048 - 8 * 2047)
  t.equal(paused([...large, ...small]), 0)
  count(one, 1)
  t.equal(paused([...large, ...small]), 48)
  await nextTick()
  t.same([paused(large), paused(small)], [36, 4])
  await nextTick()
  t.same([paused(large), paused(small)], [32, 0])
  // The next tick has read nothing so far.
  count(one, 524_288)
  t.equal(paused(small), 0)
  for (let tick = 1; tick <= 4; tick++) await nextTick()
  t.equal(paused(large), 0)
})
