// Tests shutdowns: which requests still get a response, and what is cut.
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { connect, type Socket } from 'node:net'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { ApiError, clientClosedRequest, errors } from '../../../src/errors.ts'
import { startApp } from '../../support/app.ts'
import { startBlocked } from '../../support/blocked.ts'
import { createDatabase, sql } from '../../support/database.ts'
import { exchange, parseResponses } from '../../support/raw.ts'

function open (t: Test, address: string): Socket {
  const { hostname, port } = new URL(address)
  const socket = connect(Number(port), hostname).on('error', () => {})
  t.teardown(() => { socket.destroy() })
  return socket
}

/** In this database, the list of alice does not fit into the buffers of a socket. */
const DATABASE_URL = await createDatabase(t)
await sql(DATABASE_URL,
  "insert into plants select 'alice', id, repeat('x', 4000) from generate_series(1, 5000) as id")

t.test('a shutdown ends each connection with its next response, and waits for a list', async (t) => {
  const { app, as, lifecycle, listen } = await startApp(t, { DATABASE_URL })
  const address = await listen()
  const { authorization } = await as('alice')
  const sockets: Socket[] = []
  app.server.on('connection', (socket: Socket) => { sockets.push(socket) })
  const send = async (text: string) => {
    const client = open(t, address)
    const received = buffer(client)
    client.write(text)
    const isRead = ({ remotePort, bytesRead }: Socket) =>
      remotePort === client.localPort && bytesRead === text.length
    while (!sockets.some(isRead)) await nextTick()
    return () => received
  }
  const live = 'GET /livez HTTP/1.1\r\nHost: x\r\n'
  const starts = ['', 'GET /pl', `${live}\r\n`, `${live}Content-Length: 9\r\n\r\nx`]
  const idle = await Promise.all(starts.map(send))
  // The service must wait until the client reads.
  const reading = open(t, address).pause()
  reading.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
  while (!sockets.some(({ writableLength }) => writableLength > 0)) await nextTick()

  lifecycle.stopping = true
  for (const path of ['/livez', '/nowhere', '/x%zz', `/plants/${'1'.repeat(1001)}`]) {
    const [response] = await exchange(address, [`DELETE ${path} HTTP/1.1\r\nHost: x\r\n\r\n`])
    t.equal(response?.headers.connection, 'close', path)
  }
  const closed = app.close()
  const [list] = parseResponses(await buffer(reading))
  t.equal(JSON.parse(list?.body as string).length, 5000)
  const received = await Promise.all(idle.map((read) => read()))
  t.same(received.map((bytes) => parseResponses(bytes).length), [0, 0, 1, 1])
  await closed
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
  const { app, as, listen, url } = await startApp(t, { DATABASE_URL })
  const address = await listen()
  const { authorization } = await as('bob')
  await sql(url, "insert into plants select 'bob', id, repeat('x', 600) from generate_series(1, 100) as id")
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

t.test('a list that the service cuts is not reported as left by its client', async (t) => {
  const pages = new Readable({ read () {} })
  let raw: ServerResponse | undefined
  const { as, listen, log } = await startApp(t, {}, (app) => {
    app.get('/plants', (_request, reply) => {
      raw = reply.raw
      pages.push('[')
      return reply.send(pages)
    })
  })
  const { authorization } = await as('alice')
  const { headers } = await fetch(`${await listen()}/plants`, { headers: { authorization } })
  raw?.destroy(new ApiError(errors.STOPPING))
  // The batcher rejects the page of a response that is destroyed.
  pages.destroy(clientClosedRequest)
  await once(raw as ServerResponse, 'close')
  const id = headers.get('x-request-id')
  const lines = log.map((line) => JSON.parse(line)).filter(({ reqId }) => reqId === id)
  t.match(lines, [{ error: 50303, aborted: 'service' }, { msg: 'request completed', aborted: 'service' }])
})

t.test('a shutdown waits for no unread list and no unfinished body, and cuts a slow list', async (t) => {
  for (const isSlow of [false, true]) {
    const { app, as, lifecycle, listen, log } = await startApp(t, { DATABASE_URL })
    const address = await listen()
    const { authorization } = await as('alice')
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
    t.equal(log.some((line) => cut.test(line)), isSlow)
    const all = log.map((line) => JSON.parse(line))
    t.equal(all.find(({ method, error }) => method === 'POST' && error).error, isSlow ? 50303 : 40001)
    const lines = all.filter(({ aborted, status }) => aborted === 'service' && status === 200)
    const reported = { error: 50303, level: 'error', user: 'alice', reqId: String }
    t.match(lines, isSlow ? [{ msg: 'request completed' }, reported] : [])
  }
})
