// What the log says of answers: who was refused, and no more lines than somebody can read.
import { once } from 'node:events'
import { connect } from 'node:net'
import { mock } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { ApiError, errors } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { exchange } from '../support/raw.ts'

const random = /^[\da-f]{32}$/
const parsed = (lines: string[]) => lines.map((line) => JSON.parse(line))

t.test('a refusal tells who was refused what, and its answer which line that is', async (t) => {
  const { as, log, url, app } = await startApp(t, { LOG_LEVEL: 'info' })
  const reader = await as('alice', { readOnly: true })
  const [{ id: tokenId }] = await sql(url, 'select id from tokens') as [{ id: string }]
  const before = log.length
  const answer = await reader.delete(7)
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
    reqId: answer.headers['x-request-id']
  })
  t.match(answer.headers['x-request-id'], random)
  t.same(more, [])
  await sql(url, 'update tokens set revoked_at = now()')
  const other = await as('bob')
  await sql(url, "update tokens set revoked_at = now() where username = 'bob'")
  await other.list()
  t.match(JSON.parse(log.at(-1) as string), { status: 401, reason: 'revoked', user: 'bob', tokenId: String })
  const [one, two] = await Promise.all([1, 2].map(() => app.inject({ url: '/livez', headers: { 'x-request-id': 'mine', 'request-id': 'mine' } })))
  t.match([one?.headers['x-request-id'], two?.headers['x-request-id']], [random, random])
  t.not(one?.headers['x-request-id'], two?.headers['x-request-id'])
})

t.test('whatever a route says, at whatever level, has the id of its request, and a child what it adds', async (t) => {
  const levels = ['fatal', 'error', 'warn', 'info', 'debug', 'trace'] as const
  const { as, app, log } = await startApp(t, { LOG_LEVEL: 'debug' }, async (guarded) => {
    guarded.get('/pots', async ({ log }) => {
      const before = log.level
      for (const level of levels) log[level]({ pot: 1 }, level)
      log.level = 'trace'
      log.trace('now it is told')
      log.silent('to nobody')
      log.child({ shelf: 2 }).info('further down')
      return { before, after: log.level }
    })
  })
  const { authorization } = await as('alice')
  const answer = await app.inject({ url: '/pots', headers: { authorization } })
  t.strictSame(answer.json(), { before: 'debug', after: 'trace' })
  const reqId = answer.headers['x-request-id']
  const lines = parsed(log).filter((line) => line.reqId === reqId && line.msg !== 'answered')
  t.strictSame(lines.map(({ level, msg, pot, shelf }) => [level, msg, pot, shelf]), [
    ...levels.slice(0, -1).map((level) => [level, level, 1, undefined]),
    ['trace', 'now it is told', undefined, undefined],
    ['info', 'further down', undefined, 2]
  ])
  t.not((await app.inject({ url: '/pots', headers: { authorization } })).json().before, 'trace', 'a level is that of one request')
})

t.test('an answer that no request is known for has an id as well', async (t) => {
  const { listen, log } = await startApp(t)
  const address = await listen()
  for (const text of ['garbage\r\n\r\n', 'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n', 'GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n']) {
    const [answer] = await exchange(address, [text])
    const reqId = answer?.headers['x-request-id']
    t.match(reqId, random, text)
    t.match(parsed(log).find((line) => line.reqId === reqId), { status: answer?.status, level: 'info', remoteAddress: '127.0.0.1' }, text)
  }
})

t.test('of trusted proxies the caller\'s address is taken, as far as it is one', async (t) => {
  const { app, log } = await startApp(t, { TRUSTED_PROXIES: 'loopback, 10.0.0.0/8,fd00::/8' })
  const addressOf = async (forwarded: string | undefined, remoteAddress = '127.0.0.1') => {
    await app.inject({ url: '/x', remoteAddress, headers: forwarded === undefined ? {} : { 'x-forwarded-for': forwarded } })
    return JSON.parse(log.findLast((line) => JSON.parse(line).error === 40401) as string).remoteAddress
  }
  t.equal(await addressOf(undefined), '127.0.0.1')
  t.equal(await addressOf('203.0.113.7'), '203.0.113.7')
  t.equal(await addressOf('1.1.1.1, 203.0.113.7, 10.1.2.3'), '203.0.113.7')
  t.equal(await addressOf('2001:db8::1, fd00::7'), '2001:db8::1')
  t.equal(await addressOf('203.0.113.7, unknown, 10.1.2.3'), '10.1.2.3', 'what is no address is none')
  t.equal(await addressOf('<script>'), '127.0.0.1')
  t.equal(await addressOf('203.0.113.7', '198.51.100.1'), '198.51.100.1', 'who is not trusted is not believed')
  const plain = await startApp(t)
  await plain.app.inject({ url: '/x', headers: { 'x-forwarded-for': '203.0.113.7' } })
  t.match(JSON.parse(plain.log.find((line) => JSON.parse(line).error === 40401) as string), { remoteAddress: '127.0.0.1' })
})

t.test('refusals of one kind are logged in full at first and then counted, a line a second', async (t) => {
  const { app, log } = await startApp(t, { LOG_LEVEL: 'info' })
  await Promise.all(Array.from({ length: 1000 }, (_, index) => app.inject({ url: '/plants', remoteAddress: `10.0.0.${index % 7}` })))
  await app.inject({ url: '/x' })
  const lines = () => parsed(log).filter(({ error }) => error === 40101)
  while (!lines().some(({ further }) => further !== undefined)) await delay(10)
  t.equal(lines().filter(({ further }) => further === undefined).length, 30)
  const counted = lines().filter(({ further }) => further !== undefined)
  t.match(counted[0], { level: 'info', error: 40101, status: 401, reqId: undefined, addresses: 7 })
  t.equal(counted.reduce((sum, { further }) => sum + further, 0), 970)
  t.equal(parsed(log).filter(({ error }) => error === 40401).length, 1, 'each kind by itself')
  const before = log.length
  await app.inject({ url: '/plants' })
  t.match(parsed(log.slice(before)), [{ error: 40101, route: '/plants' }], 'and in full again afterwards')
})

t.test('an outage logs its cause with a stack once and then counts', async (t) => {
  const { app, log } = await startApp(t, { LOG_LEVEL: 'info', DATABASE_URL: 'postgres://x@127.0.0.1:1/x' })
  const headers = { authorization: `Bearer ${createToken()}` }
  await Promise.all(Array.from({ length: 50 }, () => app.inject({ url: '/plants', headers })))
  const faults = () => parsed(log).filter(({ level }) => level === 'error')
  await app.close()
  t.match(faults()[0], { error: 50301, status: 503, method: 'GET', route: '/plants', remoteAddress: '127.0.0.1', err: { stack: String, message: /ECONNREFUSED/ } })
  t.equal(faults().filter(({ err }) => err !== undefined).length, 1)
  t.equal(faults().reduce((sum, { further = 1 }) => sum + further, 0), 50)
  t.ok(faults().length < 5)
})

t.test('to HTTP/1.0 no list is given that could be cut without a sign', async (t) => {
  const { as, url, listen, log } = await startApp(t)
  const address = await listen()
  const { authorization } = await as('alice')
  const list = (query = '') => `GET /plants${query} HTTP/1.0\r\nAuthorization: ${authorization}\r\n\r\n`
  await sql(url, "insert into plants select 'alice', id, 'n' from generate_series(1, 1000) as id")
  const [refused] = await exchange(address, [list()])
  t.match(refused, { status: 400, body: '{"error":40018,"message":"The response is too long for HTTP/1.0: use HTTP/1.1, or ask for fewer results."}' })
  const [short] = await exchange(address, [list('?limit=100')])
  t.equal(JSON.parse(short?.body as string).length, 100)
  t.same(parsed(log).filter(({ level }) => level === 'error'), [])
  const { hostname, port } = new URL(address)
  const socket = connect(Number(port), hostname).resume()
  socket.end('HEAD /plants HTTP/1.0\r\n\r\n')
  await once(socket, 'close')
})

t.test('however many kinds of faults there are, the log of them is bounded', async (t) => {
  const { app, log } = await startApp(t)
  for (let kind = 0; kind < 150; kind++) {
    app.errorLog.note(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: `fault ${kind}` }), app.log, {})
  }
  const lines = log.map((line) => JSON.parse(line)).filter(({ error }) => error === 50301)
  t.equal(lines.length, 101, 'a hundred kinds, and one for all the rest')
})

t.test('a fault is logged in full again when there was none of its kind for ten seconds', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const { app, log } = await startApp(t)
  const fault = () => {
    app.errorLog.note(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: new Error('gone') }), app.log, {})
  }
  const stacks = () => log.filter((line) => JSON.parse(line).err?.message === 'gone').length
  fault()
  fault()
  mock.timers.tick(9000)
  fault()
  t.equal(stacks(), 1)
  // The first second tells how many there were.
  mock.timers.tick(11_000)
  fault()
  t.equal(stacks(), 2)
})

t.test('a fault without a cause is logged with its own stack', async (t) => {
  const { app, log } = await startApp(t)
  app.errorLog.note(new ApiError(errors.INTERNAL), app.log, { method: 'GET', route: '/plants' })
  t.match(JSON.parse(log.at(-1) as string), { level: 'error', error: 50001, err: { stack: /log\.test\.ts/ } })
})

t.test('where the log is silent nothing is counted either', async (t) => {
  const { app, log } = await startApp(t, { LOG_LEVEL: 'silent' })
  t.equal((await app.inject('/nowhere')).statusCode, 404)
  t.strictSame(log, [])
})
