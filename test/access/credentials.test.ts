// Sends each kind of credentials to each route, and checks that neither the log nor a table has a token. Then
// sends many requests at once on connections that have not sent a valid token yet.
import { subscribe } from 'node:diagnostics_channel'
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import type { FastifyInstance, HTTPMethods } from 'fastify'
import t, { type Test } from 'tap'
import { createToken } from '../../src/access/tokens.ts'
import { tokenEvents } from '../../src/telemetry-events.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { exchange } from '../support/raw.ts'
import { guardedRoutes, openRoutes } from '../support/routes.ts'

// Records every route: the channel `fastify.initialization` delivers an app before the app has routes.
const routes: Array<[method: HTTPMethods, url: string]> = []
subscribe('fastify.initialization', (message) => {
  (message as { fastify: FastifyInstance }).fastify.addHook('onRoute', ({ method, url }) => {
    for (const one of [method].flat()) routes.push([one as HTTPMethods, url])
  })
})
const { app, as, listen, log, tokens, url: databaseUrl } = await startApp(t, { LOG_LEVEL: 'trace' })

const alice = await as('alice', { label: 'laptop' })
await alice.create({ id: 1, name: 'Monstera' })
const full = alice.authorization
const { authorization: revoked } = await as('revoked')
await tokens.revoke({ user: 'revoked' })
const expired = (await as('alice', { expires: new Date(Date.now() - 1) })).authorization
const readOnly = (await as('alice', { readOnly: true })).authorization
const unknown = `Bearer ${createToken()}`
const mistyped = full.slice(0, -1) + (full.endsWith('0') ? '1' : '0')
const secrets = [full, readOnly, expired, revoked, unknown, mistyped]
  .map((text) => text.replace('Bearer ', ''))

const realm = 'Bearer realm="plants"'
const missing = [40101, 'This operation needs the header `Authorization: Bearer <token>`.', realm] as const
const invalid = [40102, 'The bearer token is not valid.', `${realm}, error="invalid_token"`] as const
const pastExpiry = [40102, 'The bearer token is not valid: it has expired.',
  `${realm}, error="invalid_token", error_description="The token has expired"`] as const
const forbidden = [40301, 'The bearer token may only read.', `${realm}, error="insufficient_scope"`] as const
const malformedHeader = 'FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER'

const rejected = [
  ['none', undefined, 'FST_BEARER_AUTH_MISSING_AUTHORIZATION_HEADER', missing],
  ['basic', `Basic ${full.replace('Bearer ', '')}`, malformedHeader, missing],
  ['the token without a scheme', full.replace('Bearer ', ''), malformedHeader, missing],
  ['the scheme without a token', 'Bearer', malformedHeader, missing],
  ['malformed', 'Bearer monstera', 'malformed', invalid],
  ['several words', `${full} ${full}`, 'malformed', invalid],
  ['mistyped', mistyped, 'malformed', invalid],
  ['in capitals', full.toUpperCase(), 'malformed', invalid],
  ['unknown', unknown, 'unknown', invalid],
  ['expired', expired, 'expired', pastExpiry],
  ['revoked', revoked, 'revoked', invalid],
  ['read-only', readOnly, 'TOKEN_READ_ONLY', forbidden]
] as const

/** The response to HEAD has no body. */
const operations = Object.entries(guardedRoutes).flatMap(([url, methods]) =>
  methods.filter((method) => method !== 'HEAD').map((method) => [method as HTTPMethods, url] as const))

const send = (method: HTTPMethods, url: string, authorization: string | undefined, payload?: object) =>
  app.inject({ method, url, headers: { ...authorization !== undefined && { authorization } }, payload })

t.test('a token of 16,000 characters is checked, and 17,000 are too many', async (t) => {
  const address = await listen()
  for (const [length, number, message] of [
    [15_000, ...invalid], [16_000, ...invalid], [17_000, 43101, 'The headers are too large.']
  ] as const) {
    const request = ['GET /plants HTTP/1.1', 'Host: x', 'Connection: close',
      `Authorization: Bearer ${'x'.repeat(length)}`, '', ''].join('\r\n')
    isError(t, (await exchange(address, [request]))[0], number, message, `${length}`)
  }
})

t.test('each operation rejects credentials that do not suffice, and the log has the reason', async (t) => {
  const headersOf: Record<string, object> = {}
  for (const [name, authorization, reason, [number, message, challenge]] of rejected) {
    for (const [method, url] of operations) {
      if (name === 'read-only' && method === 'GET') continue
      app.errorLog.flush()
      const before = log.length
      const response = await send(method, url.replace(/:\w+/, '1'), authorization)
      isError(t, response, number, message, `${method} ${url}, ${name}:`)
      t.equal(response.headers['www-authenticate'], challenge)
      const { date, 'x-request-id': id, ...headers } = response.headers
      t.strictSame(headers, headersOf[challenge] ??= headers, 'other invalid tokens get the same response')
      const line = log.slice(before).map((line) => JSON.parse(line)).find(({ level }) => level === 'info')
      t.match(line, { error: number, reason, remoteAddress: '127.0.0.1', reqId: id })
    }
  }
})

t.test('a read-only token may list, and the case of the scheme does not matter', async (t) => {
  const created = await send('POST', '/plants', full.replace('Bearer', 'bearer'), { id: 2, name: 'Ivy' })
  t.equal(created.statusCode, 200)
  const { body } = await send('GET', '/plants', readOnly.replace('Bearer', 'bEaReR'))
  t.equal(body, '[{"name":"Monstera"},{"name":"Ivy"}]')
})

t.test('open routes need no token, and the others reject a request before they validate it', async (t) => {
  const listed = Object.entries({ ...guardedRoutes, ...openRoutes })
    .flatMap(([url, methods]) => methods.map((method) => `${method} ${url}`))
  t.strictSame(routes.map((route) => route.join(' ')).filter((route) => !route.includes(' /docs')).sort(),
    listed.sort(), 'test/support/routes.ts lists exactly the routes of the app')
  for (const [method, url] of routes) {
    if (url in openRoutes || /^\/docs(\/|$)/.test(url)) {
      const response = await app.inject({ method, url: url.replace('*', 'json') })
      t.ok(response.statusCode < 400, `${method} ${url}`)
      continue
    }
    for (const [authorization, [,, challenge]] of [[undefined, missing], [unknown, invalid]] as const) {
      const response = await app.inject({
        method,
        url: `${url.replace(/:\w+/, 'x')}?limit=none&limit=%zz`,
        headers: { ...authorization !== undefined && { authorization }, 'content-type': 'text/plain' },
        ...method === 'POST' && { payload: '{' }
      })
      t.strictSame([response.statusCode, response.headers['www-authenticate']], [401, challenge], url)
    }
  }
})

t.test('neither a table nor the log holds a token or a part of a body', async (t) => {
  for (const token of secrets) {
    await alice.list(`?access_token=${token}`)
    await alice.delete(token)
    for (const body of [token, `{"token":"${token}"}`, '{"id":1,"name":Monstera}']) await alice.create(body)
  }
  await sql(databaseUrl, 'alter table plants rename column name to title')
  t.equal((await send('GET', '/plants', readOnly)).statusCode, 500)
  await sql(databaseUrl,
    'alter table plants rename column title to name; alter table tokens rename to hidden')
  t.equal((await send('GET', '/plants', `Bearer ${createToken()}`)).statusCode, 503)
  await sql(databaseUrl, 'alter table hidden rename to tokens')

  const tables = await sql(databaseUrl,
    'select oid::regclass::text as name from pg_class where relkind in (\'r\', \'m\')')
  // PostgreSQL shows binary columns in hexadecimal, so also search for the texts in hexadecimal.
  const holders = tables.map(({ name }) =>
    `select '${name}' as name where exists (select from ${name} as t where t::text ~ $1)`).join(' union all ')
  const search = async (texts: string[]) => {
    const pattern = texts.flatMap((text) => [text, Buffer.from(text).toString('hex')]).join('|')
    return (await sql(databaseUrl, holders, [pattern])).map(({ name }) => name)
  }
  t.strictSame(await search(secrets.map((token) => token.slice('plant_'.length))), [])
  for (const token of secrets) t.notMatch(log.join(), token.slice('plant_'.length, -20))
  t.strictSame(await search(['laptop']), ['tokens'], 'the search finds a stored text')
  t.notMatch(log.join(), 'Monstera')
  const levels = new Set(log.map((line) => JSON.parse(line).level))
  for (const level of ['debug', 'error', 'info', 'trace']) t.ok(levels.has(level), `the log has ${level}`)
})

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
