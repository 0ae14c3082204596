import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { ApiError, catalogue, errors } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { exchange } from '../support/raw.ts'

// These tests send no statement, or test the log of an outage.
const withoutDatabase = { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' }
const generated = /^[\w-]{12}-\d+$/
const parsed = (lines: string[]) => lines.map((line) => JSON.parse(line))

t.test('a rejected request is logged with its user and the id of its response', async (t) => {
  const { as, log, url, app } = await startApp(t, { LOG_LEVEL: 'info' })
  const reader = await as('alice', { readOnly: true })
  const [{ id: tokenId }] = await sql(url, 'select id from tokens') as [{ id: string }]
  const before = log.length
  const response = await reader.delete(7)
  const [line, ...more] = parsed(log.slice(before))
  t.match(line, {
    level: 'info',
    time: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/,
    method: 'DELETE',
    route: '/plants/:id',
    status: 403,
    error: 40301,
    user: 'alice',
    tokenId,
    remoteAddress: '127.0.0.1',
    reqId: response.headers['x-request-id']
  })
  t.match(response.headers['x-request-id'], generated)
  t.same(more, [])
  await sql(url, 'update tokens set revoked_at = now()')
  const other = await as('bob')
  await sql(url, "update tokens set revoked_at = now() where username = 'bob'")
  await other.list()
  t.match(JSON.parse(log.at(-1) as string), { status: 401, reason: 'revoked', user: 'bob', tokenId: String })
  const [one, two] = await Promise.all([1, 2].map(() =>
    app.inject({ url: '/livez', headers: { 'x-request-id': 'mine', 'request-id': 'mine' } })))
  t.match([one?.headers['x-request-id'], two?.headers['x-request-id']], [generated, generated])
  t.not(one?.headers['x-request-id'], two?.headers['x-request-id'])
})

t.test('the error of a library is 400 or 500 by its status', async (t) => {
  const { as, app } = await startApp(t, {}, async (guarded) => {
    guarded.get('/errors/:status', ({ params }) => {
      const { status } = params as { status: string }
      throw Object.assign(new Error('private'), { statusCode: Number(status) })
    })
  })
  const { authorization } = await as('alice')
  for (const [status, expected] of [[418, 40001], [502, 50001]]) {
    const failed = await app.inject({ url: `/errors/${status}`, headers: { authorization } })
    t.match(failed.json(), { error: expected })
    t.notMatch(failed.body, 'private')
  }
})

t.test('the response to a malformed request and its log line have the same id', async (t) => {
  const { listen, log } = await startApp(t, withoutDatabase)
  const address = await listen()
  for (const text of [
    'garbage\r\n\r\n', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n',
    'GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
  ]) {
    const [response] = await exchange(address, [text])
    const reqId = response?.headers['x-request-id']
    t.match(reqId, generated, text)
    t.match(parsed(log).find((line) => line.reqId === reqId),
      { status: response?.status, level: 'info', remoteAddress: '127.0.0.1' }, text)
  }
})

t.test('the log has the address that trusted proxies forward, if it is valid', async (t) => {
  const { app, log } =
    await startApp(t, { ...withoutDatabase, TRUSTED_PROXIES: 'loopback, 10.0.0.0/8,fd00::/8' })
  const addressOf = async (forwarded: string | undefined, remoteAddress = '127.0.0.1') => {
    await app.inject({
      url: '/x', remoteAddress, headers: forwarded === undefined ? {} : { 'x-forwarded-for': forwarded }
    })
    return JSON.parse(log.findLast((line) => JSON.parse(line).error === 40401) as string).remoteAddress
  }
  t.equal(await addressOf(undefined), '127.0.0.1')
  t.equal(await addressOf('203.0.113.7'), '203.0.113.7')
  t.equal(await addressOf('1.1.1.1, 203.0.113.7, 10.1.2.3'), '203.0.113.7')
  t.equal(await addressOf('2001:db8::1, fd00::7'), '2001:db8::1')
  t.equal(await addressOf('203.0.113.7, unknown, 10.1.2.3'), '10.1.2.3', 'unknown is not an address')
  t.equal(await addressOf('<script>'), '127.0.0.1')
  t.equal(await addressOf('203.0.113.7', '198.51.100.1'), '198.51.100.1', 'an untrusted proxy is ignored')
  const plain = await startApp(t, withoutDatabase)
  await plain.app.inject({ url: '/x', headers: { 'x-forwarded-for': '203.0.113.7' } })
  t.match(JSON.parse(plain.log.find((line) => JSON.parse(line).error === 40401) as string),
    { remoteAddress: '127.0.0.1' })
})

t.test('an outage is logged with its cause and then counted', async (t) => {
  const { app, log } = await startApp(t, { ...withoutDatabase, LOG_LEVEL: 'info' })
  const headers = { authorization: `Bearer ${createToken()}` }
  await Promise.all(Array.from({ length: 50 }, () => app.inject({ url: '/plants', headers })))
  await app.close()
  const lines = parsed(log).filter(({ level }) => level === 'error')
  const err = { stack: String, message: /ECONNREFUSED/ }
  t.match(lines[0],
    { error: 50301, status: 503, method: 'GET', route: '/plants', remoteAddress: '127.0.0.1', err })
  t.equal(lines.reduce((sum, { further = 1 }) => sum + further, 0), 50)
  t.ok(lines.length < 50)
})

t.test('an HTTP/1.0 client gets no list that could be truncated unnoticed', async (t) => {
  const { as, url, listen, log } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  const list = (query = '') => `GET /plants${query} HTTP/1.0\r\nAuthorization: ${authorization}\r\n\r\n`
  await sql(url, "insert into plants select 'alice', id, 'n' from generate_series(1, 1000) as id")
  const [rejected] = await exchange(address, [list()])
  t.match(rejected, {
    status: 400,
    body: '{"error":40018,"message":"The response is too long for HTTP/1.0: use HTTP/1.1, or ask for fewer ' +
      'results."}'
  })
  const [short] = await exchange(address, [list('?limit=100')])
  t.equal(JSON.parse(short?.body as string).length, 100)
  t.same(parsed(log).filter(({ level }) => level === 'error'), [])
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
