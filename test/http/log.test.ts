// Tests the lines of errors, and the lines that LOG_REQUESTS and the level debug add.
import { once } from 'node:events'
import { connect } from 'node:net'
import { setImmediate as nextTick, setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createToken, idOf } from '../../src/access/tokens.ts'
import { ApiError, catalogue, errors } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, openSession, sql, waitingForLocks } from '../support/database.ts'
import { matchEach } from '../support/match.ts'
import { exchange } from '../support/raw.ts'

// These tests send no statement, or test the log of an outage.
const withoutDatabase = { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' }
const generated = /^[\w-]{12}-\d+$/
const parsed = (lines: string[]) => lines.map((line) => JSON.parse(line))

t.test('a rejected request is logged with its user and the id of its response', async (t) => {
  const { app, as, log, tokens, url } = await startApp(t, { LOG_LEVEL: 'info' })
  const reader = await as('alice', { readOnly: true })
  const [{ id: tokenId }] = await sql(url, 'select id from tokens') as [{ id: string }]
  const before = log.length
  const { headers: { 'x-request-id': reqId } } = await reader.delete(7)
  t.match(reqId, generated)
  const time = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/
  matchEach(t, parsed(log.slice(before)), [
    { level: 'info', time, route: '/plants/:id', status: 403, error: 40301, user: 'alice', tokenId, reqId }
  ])
  const other = await as('bob')
  await tokens.revoke({ user: 'bob' })
  await other.list()
  t.match(JSON.parse(log.at(-1) as string), { status: 401, reason: 'revoked', user: 'bob', tokenId: String })
  const headers = { 'x-request-id': 'mine', 'request-id': 'mine' }
  const { headers: { 'x-request-id': another } } = await app.inject({ url: '/livez', headers })
  t.match(another, generated)
  t.not(another, reqId)
})

t.test('the error of a library is 400 or 500 by its status', async (t) => {
  const { as, app } = await startApp(t, {}, async (guarded) => {
    guarded.get<{ Params: { status: number } }>('/errors/:status', ({ params: { status } }) => {
      throw Object.assign(new Error('private'), { statusCode: Number(status) })
    })
  })
  const { authorization } = await as('alice')
  for (const [status, error] of [[418, 40001], [502, 50001]]) {
    const failed = await app.inject({ url: `/errors/${status}`, headers: { authorization } })
    t.match(failed.json(), { error })
    t.notMatch(failed.body, 'private')
  }
})

t.test('the response to a malformed request and its log line have the same id', async (t) => {
  const { listen, log } = await startApp(t, withoutDatabase)
  const address = await listen()
  for (const text of [
    'garbage\r\n\r\n', 'GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
  ]) {
    const [response] = await exchange(address, [text])
    const reqId = response?.headers['x-request-id']
    t.match(reqId, generated, text)
    t.match(parsed(log).find((line) => line.reqId === reqId),
      { status: response?.status, level: 'info', remoteAddress: '127.0.0.1' }, text)
  }
})

t.test('a failed report ends neither the process nor the response, and is an error of its own', async (t) => {
  const { app, as, log } = await startApp(t, { LOG_LEVEL: 'info' }, async (guarded) => {
    guarded.post<{ Params: { error: string } }>('/faults/:error', async (request) => {
      request.identity = { ...request.identity, get id (): string { throw new Error('a faulty report') } }
      if (request.params.error === 'yes') throw new ApiError(errors.FIELD_INVALID)
      return { status: 'ok' }
    })
  })
  const { authorization } = await as('alice')
  let counted: number[] = []
  app.errorLog.onError = ({ number }) => { counted.push(number) }
  const linesOf = async (error: string, expected: object) => {
    const before = log.length
    const response = await app.inject({ method: 'POST', url: `/faults/${error}`, headers: { authorization } })
    t.match(response.json(), expected)
    while (log.length === before) await delay(1)
    const lines = parsed(log.slice(before))
    t.match(lines[0], { level: 'error', reqId: response.headers['x-request-id'] })
    return lines.map(({ error, err: { message } }) => [error, message])
  }
  const failed = [50001, 'a faulty report']
  const internal = { error: 50001, message: 'Something went wrong inside the service.' }
  t.strictSame(await linesOf('yes', internal), [failed])
  t.strictSame(await linesOf('no', { status: 'ok' }), [failed], 'only the line of the request failed')
  t.strictSame(counted, [50001, 50001])

  counted = []
  app.errorLog.onError = () => { throw new Error('faulty metrics') }
  t.strictSame(await linesOf('yes', internal), [failed])
})

t.test('the log has the address that trusted proxies forward, if it is valid', async (t) => {
  const TRUSTED_PROXIES = 'loopback, 10.0.0.0/8,fd00::/8'
  const behindProxy = await startApp(t, { ...withoutDatabase, TRUSTED_PROXIES })
  const direct = await startApp(t, withoutDatabase)
  for (const [{ app, log }, remoteAddress, forwarded, expected] of [
    [behindProxy, '127.0.0.1', '1.1.1.1, 203.0.113.7, 10.1.2.3', '203.0.113.7'],
    [behindProxy, '127.0.0.1', '2001:db8::1, fd00::7', '2001:db8::1'],
    [behindProxy, '127.0.0.1', '203.0.113.7, unknown, 10.1.2.3', '10.1.2.3'],
    [behindProxy, '127.0.0.1', '<script>', '127.0.0.1'],
    [behindProxy, '::ffff:10.1.2.3', '203.0.113.7', '203.0.113.7'],
    // TRUSTED_PROXIES does not contain this proxy.
    [behindProxy, '198.51.100.1', '203.0.113.7', '198.51.100.1'],
    [direct, '127.0.0.1', '203.0.113.7', '127.0.0.1'],
    [direct, '::ffff:198.51.100.1', '203.0.113.7', '198.51.100.1']
  ] as const) {
    await app.inject({ url: '/x', remoteAddress, headers: { 'x-forwarded-for': forwarded } })
    t.equal(parsed(log).findLast(({ error }) => error === 40401).remoteAddress, expected, forwarded)
  }
})

t.test('an outage is logged with its cause and then counted', async (t) => {
  const { app, log } = await startApp(t, withoutDatabase)
  const headers = { authorization: `Bearer ${createToken()}` }
  await Promise.all(Array.from({ length: 50 }, () => app.inject({ url: '/plants', headers })))
  await app.close()
  const lines = parsed(log).filter(({ level }) => level === 'error')
  t.match(lines[0], {
    error: 50301, status: 503, method: 'GET', remoteAddress: '127.0.0.1', err: { message: /ECONNREFUSED/ }
  })
  t.equal(lines.reduce((sum, { further = 1 }) => sum + further, 0), 50)
  t.ok(lines.length < 50)
})

t.test('each error has twenty lines in a second, all errors together sixty, and then a count', async (t) => {
  const { app, log } = await startApp(t, withoutDatabase)
  const record = (error: ApiError) => { app.errorLog.record(error, 'token', app.log, {}) }
  // Server errors with the same number share a limit, whatever their causes.
  for (let index = 0; index < 150; index++) {
    record(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: `fault ${index}` }))
  }
  record(new ApiError(errors.INTERNAL))
  t.match(JSON.parse(log.at(-1) as string), { level: 'error', error: 50001, err: { stack: /log\.test\.ts/ } },
    'an error without a cause is logged with its own stack')
  t.equal(log.length, 21)
  for (const error of catalogue.values()) {
    for (let index = 0; index < 100; index++) record(new ApiError(error))
  }
  const before = log.length
  t.ok(before <= 60 + catalogue.size, `${before} lines`)
  // The count comes a second after the first error.
  while (log.length === before) await delay(10)
  const lines = parsed(log)
  t.strictSame(new Set(lines.map(({ error }) => error)), new Set(catalogue.keys()))
  t.equal(lines.reduce((sum, { further = 1 }) => sum + further, 0), 151 + 100 * catalogue.size)
  t.match(lines.find(({ error, further }) => error === 40101 && further !== undefined),
    { level: 'info', status: 401, msg: /^and more: / })
  record(new ApiError(errors.DATABASE_UNAVAILABLE))
  t.match(JSON.parse(log.at(-1) as string), { error: 50301, further: undefined },
    'the count restarts with the next second')
})

const message = 'request completed'

const tokenIdOf = ({ authorization }: { authorization: string }) => idOf(authorization.replace('Bearer ', ''))

async function start (t: Test, environment: Record<string, string>) {
  const service = await startApp(t, environment)
  const lines = () => service.log.map((line) => JSON.parse(line)).filter(({ reqId }) => reqId !== undefined)
  /** Waits for the lines of `count` requests: the client may have its response before the line is logged. */
  async function completed (count: number) {
    while (lines().length < count) await nextTick()
    return lines()
  }
  return { ...service, completed, lines }
}

t.test('a line names who wrote what and when, and has no text of a plant', async (t) => {
  const { as, completed, lines, log } = await start(t, { LOG_LEVEL: 'info', LOG_REQUESTS: 'writes' })
  const alice = await as('alice')
  const tokenId = tokenIdOf(alice)
  const id = '9223372036854775807'
  const created = await alice.create(`{"id": ${id}, "name": "Monstera", "tag": "tropical"}`)
  await alice.list()
  await alice.delete(id)
  const written = { level: 'info', msg: message, id, user: 'alice', tokenId, ms: Number }
  matchEach(t, await completed(2), [
    { ...written, method: 'POST', route: '/plants', status: 200, remoteAddress: '127.0.0.1' },
    { ...written, method: 'DELETE', route: '/plants/:id', status: 204 }
  ])
  t.equal(lines()[0].reqId, created.headers['x-request-id'])
  t.ok(lines().every(({ ms }) => ms > 0 && ms < 60_000))
  t.notMatch(log.join(), /Monstera|tropical/)

  // The line of the error is enough.
  await alice.delete(1)
  await alice.create('{"id": 1}')
  await (await as('bob', { readOnly: true })).delete(1)
  const rejected = (await completed(5)).slice(2)
  t.strictSame(rejected.map(({ error, msg, user }) => [error, msg === message, user]),
    [[40402, false, 'alice'], [40011, false, 'alice'], [40301, false, 'bob']])
})

t.test('LOG_REQUESTS selects the requests, and the level debug shows all', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  for (const [LOG_REQUESTS, LOG_LEVEL, ...expected] of [
    ['off', 'info'],
    ['writes', 'info', 'POST info'],
    ['all', 'info', 'GET info', 'POST info', 'HEAD info', 'GET info'],
    ['all', 'warn'],
    ['off', 'debug', 'GET debug', 'POST debug', 'HEAD debug', 'GET debug', 'DELETE debug', 'POST debug'],
    ['writes', 'trace', 'GET debug', 'POST info', 'HEAD debug', 'GET debug', 'DELETE debug', 'POST debug']
  ] as const) {
    const { app, as, log } = await start(t, { DATABASE_URL, LOG_REQUESTS, LOG_LEVEL })
    const alice = await as(`${LOG_REQUESTS} ${LOG_LEVEL}`)
    const { authorization } = alice
    await alice.list()
    await alice.create({ id: 1, name: 'Fern' })
    await app.inject({ method: 'HEAD', url: '/plants', headers: { authorization } })
    await app.inject('/livez')
    await app.inject('/readyz')
    await alice.delete(2)
    await app.inject({ method: 'POST', url: '/plants' })
    await nextTick()
    const lines = log.map((line) => JSON.parse(line)).filter(({ msg }) => msg === message)
    const logged = lines.map(({ method, level }) => `${method} ${level}`)
    t.strictSame(logged, expected, `${LOG_REQUESTS} ${LOG_LEVEL}`)
  }
})

t.test('a write whose client has left before the response is attributed', async (t) => {
  const { as, completed, listen, url } = await start(t, { LOG_LEVEL: 'info' })
  const { hostname, port } = new URL(await listen())
  const alice = await as('alice')
  await alice.list()
  const operator = await openSession(t, url, 'begin; lock table plants')
  const client = connect(Number(port), hostname)
  const body = '{"id":7,"name":"Fern"}'
  client.write(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${alice.authorization}\r\n` +
    `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n${body}`)
  while ((await sql(url, waitingForLocks)).length === 0);
  client.resetAndDestroy()
  matchEach(t, await completed(1),
    [{ status: 499, method: 'POST', id: '7', user: 'alice', tokenId: tokenIdOf(alice) }])
  await operator.query('commit')
  // The write takes effect.
  while ((await alice.list()).body !== '[{"name":"Fern"}]');
})

t.test('a client that leaves before its request is checked gets no text into the log', async (t) => {
  const { app, as, completed, listen, log } = await start(t, { LOG_LEVEL: 'info' })
  const { hostname, port } = new URL(await listen())
  const { authorization, list } = await as('alice')
  await list()
  const client = connect(Number(port), hostname)
  const arrived = once(app.server, 'request')
  client.write(`DELETE /plants/secret HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
    'Content-Type: application/json\r\nContent-Length: 9\r\n\r\n')
  await arrived
  client.resetAndDestroy()
  const [line] = await completed(1)
  t.match(line, { method: 'DELETE', status: 499, user: 'alice' })
  t.notMatch(log.join(), 'secret')
})

t.test('an id that is no integer is rejected, and the log shows no part of it', async (t) => {
  const { as, lines, log } = await start(t, { LOG_LEVEL: 'debug' })
  const { create } = await as('alice')
  const keys = ['toString', 'valueOf', 'toJSON', 'then', 'constructor', 'length', 'hasOwnProperty', 'id',
    'Symbol.toPrimitive', 'a']
  const ids = [
    ...keys.flatMap((key) => [1, null, 'secret', { [key]: 1 }].map((value) => ({ [key]: value }))),
    [], ['7'], [7], [{ toString: 1 }], 'secret', 1.5, true, null
  ]
  for (const id of ids) {
    const response = await create({ id, name: 'x' })
    t.match(response.json(), { error: 40012, message: /^id must be an integer/ }, JSON.stringify(id))
  }
  // At this level, each request has a line of its own besides the line of its error.
  while (lines().filter(({ msg }) => msg === message).length < ids.length) await nextTick()
  t.strictSame(lines().filter((line) => 'id' in line || line.error > 40012), [])
  t.notMatch(log.join(), 'secret')
})

t.test('a write with an unknown outcome gets a line even beyond the limits of the error log', async (t) => {
  const { as, completed, lines, url } = await start(t, { LOG_LEVEL: 'info' })
  const alice = await as('alice')
  await alice.create({ id: 0, name: 'Fern' })
  await sql(url, 'alter table plants rename column name to title')
  const ids = Array.from({ length: 50 }, (_, id) => String(id + 1))
  const sent = await Promise.all(ids.map((id) => alice.create({ id: Number(id), name: 'Ivy' })))
  t.ok(sent.every(({ statusCode }) => statusCode === 500))
  const failed = (await completed(51)).slice(1)
  const requestIds = sent.map(({ headers }) => headers['x-request-id'])
  t.strictSame(new Set(failed.map(({ reqId }) => reqId)), new Set(requestIds))
  const beyond = failed.filter(({ msg }) => msg === message)
  // On a busy machine, the errors take longer than the second that the limits are for.
  t.ok(beyond.length > 0)
  for (const line of beyond) t.match(line, { status: 500, user: 'alice', id: String })

  // A rejected write changes nothing, so the limits hold.
  await sql(url, 'alter table plants rename column title to name')
  const before = lines().length
  await Promise.all(ids.map((id) => alice.delete(id)))
  for (let tick = 0; tick < 10; tick++) await nextTick()
  t.ok(lines().length - before <= 40, `${lines().length - before} lines`)
})
