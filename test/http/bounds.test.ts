// Tests the limits on connections, unfinished bodies and unread responses.
import { on, once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { connect, type Socket } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { createToken } from '../../src/access/tokens.ts'
import { openSession, sql } from '../support/database.ts'
import { startBlocked } from '../support/blocked.ts'
import { exchange, parseResponses } from '../support/raw.ts'

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
  while (logged().length < 3) await nextTick()
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

  // Many errors take turns. A malformed body arrives before the turn of its response.
  const unknown = `POST /nothing HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n${chunked}\r\n\r\n`
  const rejected = await Promise.all(Array.from({ length: 100 }, () => exchange(address, [unknown, 'x'])))
  t.match(rejected, Array(100).fill([{ status: 404 }]))
  t.same(log.filter((line) => JSON.parse(line).level === 'warn'), [])

  app.server.headersTimeout = app.server.requestTimeout = 100
  t.match(await exchange(address, [partial]), [{ status: 408 }])
  t.same(logged().filter((error) => error !== 40401), [40001, 40001, 40001, 40102, 40801])
})

t.test('at its deadline, a shutdown cuts what waits for the database, and logs each write', async (t) => {
  const { app, alice: { authorization }, lifecycle, listen, log, sendBlocked, unblock, url } =
    await startBlocked(t, {}, 'lock table plants in access exclusive mode')
  const address = await listen()
  const head = `/plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n`
  const plant = 'Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{"id":1,"name":"n"}'
  const requests = [`POST ${head}${plant}`, `GET ${head}\r\n`, `HEAD ${head}\r\n`]
  const [created, ...lists] =
    await sendBlocked(...requests.map((request) => () => exchange(address, [request]).catch(() => [])))
  Object.assign(lifecycle, { forceCloseAt: performance.now() })
  const closed = app.close()
  await closed
  t.same(await Promise.all([created, ...lists]), [[], [], []])
  const lines = log.map((line) => JSON.parse(line))
  const message = 'the shutdown cuts a write: its outcome is unknown'
  t.same(lines.filter(({ msg }) => msg === message).length, 1)
  t.match(lines.at(-1), { connections: 2, msg: 'the shutdown cuts unfinished reads and bodies' })
  await unblock()
  while ((await sql(url, 'select from plants')).length === 0);
})

t.test('a shutdown waits for the database, and for a body that still arrives', async (t) => {
  const { app, alice: { authorization }, listen, sendBlocked, unblock } =
    await startBlocked(t, {}, 'lock table plants in access exclusive mode')
  const address = await listen()
  const sockets: Socket[] = []
  app.server.on('connection', (socket: Socket) => { sockets.push(socket) })
  const head = `/plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n`
  const bodyHead = 'Content-Type: application/json\r\nContent-Length: 19\r\n\r\n'
  const [list] = await sendBlocked(() => exchange(address, [`GET ${head}\r\n`]))
  const client = open(t, address)
  const created = buffer(client)
  client.write(`POST ${head}${bodyHead}{"id":1,`)
  while (sockets[1]?.bytesRead !== head.length + bodyHead.length + 13) await nextTick()
  const closed = app.close()
  client.write('"name":"n"}')
  // Without traffic, the connections time out after two seconds. Their clients are not to blame.
  await Promise.all(sockets.map((socket) => once(socket, 'timeout')))
  await unblock()
  t.match(await list, [{ status: 200, headers: { connection: 'close' } }])
  t.match(parseResponses(await created), [{ status: 200, headers: { connection: 'close' } }])
  await closed
})

t.test('a shutdown sends the rest of a response that the service has completed', async (t) => {
  const { app, as, listen, url } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  await sql(url, "insert into plants select 'alice', id, repeat('x', 600) from generate_series(1, 100) as id")
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const client = open(t, address).pause()
  const [socket] = await accepted
  // Send requests until the system's buffers are full of unread responses.
  let count = 0
  for (; socket.writableLength === 0; count++) {
    const begun = once(app.server, 'request') as Promise<[unknown, ServerResponse]>
    client.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
    const [, response] = await begun
    while (!response.writableEnded) await nextTick()
    await nextTick()
  }
  const closed = app.close()
  const responses = parseResponses(await buffer(client))
  t.same(responses.map(({ body }) => JSON.parse(body).length), Array(count).fill(100))
  client.destroy()
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

t.test('requests with large bodies start in turns, and not after the client has left', async (t) => {
  const { app, as, lifecycle, listen, log } = await startApp(t)
  const address = await listen()
  const [alice, bob] = await Promise.all([as('alice'), as('bob')])

  /** Sends a large create on each connection, all in one tick. Resolves when all have arrived. */
  async function createAtOnce (users: Array<typeof alice>): Promise<[Socket[], Socket[]]> {
    const clients = users.map(() => open(t, address))
    // Node accepts one connection a tick.
    const accepted = (await all('connection', users.length)) as Socket[]
    const arrived = all('request', users.length)
    for (const [index, { authorization }] of users.entries()) {
      clients[index]?.write('POST /plants HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n' +
        `Authorization: ${authorization}\r\nContent-Length: 20000\r\n\r\n${'x'.repeat(20_000)}`)
    }
    await arrived
    return [clients, accepted]
  }

  /** Resolves to the first arguments of the next `count` events. */
  async function all (event: string, count: number): Promise<unknown[]> {
    const found: unknown[] = []
    for await (const [first] of on(app.server, event)) if (found.push(first) === count) break
    return found
  }

  const idOf = (response: string) => Number(/^x-request-id: .*-(\d+)/m.exec(response)?.[1])
  const [clients] = await createAtOnce([...Array(60).fill(alice), bob])
  const ids = await Promise.all(clients.map(async (socket) => idOf(String(await once(socket, 'data')))))
  const later = ids.filter((id) => id > (ids.at(-1) as number)).length
  t.ok(later > 10, `${later} requests started after bob's`)

  const lastId = async () =>
    Number(/-(\d+)$/.exec(String((await app.inject('/livez')).headers['x-request-id']))?.[1])
  const before = await lastId()
  const [, accepted] = await createAtOnce(Array(60).fill(alice))
  for (const socket of accepted) socket.destroy()
  // This request has the last turn.
  await fetch(`${address}/plants`, {
    method: 'POST',
    headers: { authorization: alice.authorization, 'content-type': 'application/json' },
    body: 'x'.repeat(20_000)
  })
  const started = await lastId() - before - 2
  t.ok(started < 50, `${started} requests started`)

  await createAtOnce(Array(60).fill(alice))
  Object.assign(lifecycle, { forceCloseAt: performance.now() })
  await app.close()
  const cut = log.map((line) => JSON.parse(line)).filter(({ msg }) => msg.startsWith('the shutdown cuts'))
  t.match(cut.at(-1), { connections: Number }, 'the shutdown cuts requests that wait for their turn')
  t.ok(cut.slice(0, -1).every(({ reqId }) => reqId !== ''), 'they are no uncertain writes')
})
