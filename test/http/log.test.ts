import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createToken } from '../../src/access/tokens.ts'
import { ApiError, catalogue, errors } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
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
