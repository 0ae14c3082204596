import { once } from 'node:events'
import { connect } from 'node:net'
import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { hashToken } from '../../src/access/tokens.ts'
import { startApp } from '../support/app.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { matchEach } from '../support/match.ts'

const message = 'request completed'

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

const idOf = (authorization: string) => hashToken(authorization.replace('Bearer ', '')).slice(0, 16)

t.test('a line names who wrote what and when, and has no text of a plant', async (t) => {
  const { as, completed, lines, log } = await start(t, { LOG_LEVEL: 'info', LOG_REQUESTS: 'writes' })
  const alice = await as('alice')
  const tokenId = idOf(alice.authorization)
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
  for (const [LOG_REQUESTS, LOG_LEVEL, ...expected] of [
    ['off', 'info'],
    ['writes', 'info', 'POST info'],
    ['all', 'info', 'GET info', 'POST info', 'HEAD info', 'GET info'],
    ['all', 'warn'],
    ['off', 'debug', 'GET debug', 'POST debug', 'HEAD debug', 'GET debug', 'DELETE debug', 'POST debug'],
    ['writes', 'trace', 'GET debug', 'POST info', 'HEAD debug', 'GET debug', 'DELETE debug', 'POST debug']
  ] as const) {
    const { app, as, log } = await start(t, { LOG_REQUESTS, LOG_LEVEL })
    const alice = await as('alice')
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
    [{ status: 499, method: 'POST', id: '7', user: 'alice', tokenId: idOf(alice.authorization) }])
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
