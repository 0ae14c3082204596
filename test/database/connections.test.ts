// Tests connections to real servers and to proxies with faults. connection-set-orders.test.ts runs the
// events of connections in random orders.
import { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createToken } from '../../src/access/tokens.ts'
import type { Connection } from '../../src/database/connection.ts'
import { createConnector, openClient } from '../../src/database/connector.ts'
import { openDatabase } from '../../src/database/database.ts'
import { ConnectionSet } from '../../src/database/connection-set.ts'
import { ManagedConnection } from '../../src/database/managed-connection.ts'
import { toDatabaseError, wasRolledBack } from '../../src/database/pg-errors.ts'
import { ApiError } from '../../src/errors.ts'
import { connectionEvents } from '../../src/events.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, openSession, sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { matchEach } from '../support/match.ts'

/** Long enough that no statement times out on a busy machine. */
const statementTimeoutMs = 60_000

const one = { name: 'one', text: 'select 1' }
const end = { name: 'end', text: 'select pg_terminate_backend(pg_backend_pid())' }
const url = await createDatabase(t)

/** Calls `run` until it resolves. On a busy machine the first attempts to connect may fail. */
async function untilItSucceeds (run: () => Promise<unknown>): Promise<void> {
  while (!await run().then(() => true, () => false)) await delay(10)
}

/** Opens the database, and its connection for `read`, through a proxy. */
async function openProxied (t: Test, timeoutMs = statementTimeoutMs) {
  const proxy = await openProxy(t, url)
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: timeoutMs })
  t.teardown(database.close)
  await untilItSucceeds(() => database.read(one))
  return { proxy, database }
}

type Written = Buffer | Array<{ chunk: Buffer }>

/** Records the messages of each write to the server: P is Parse, B is Bind, E is Execute, S is Sync. */
function watchWrites (t: Test): string[] {
  const writes: string[] = []
  const prototype = Socket.prototype as Socket & { _writev: Socket['_write'] }
  for (const name of ['_write', '_writev'] as const) {
    const write = prototype[name]
    t.capture(prototype, name, function (written: Written, ...rest) {
      if (this.remotePort === Number(new URL(url).port)) writes.push(kindsOf(written))
      Reflect.apply(write, this, [written, ...rest])
    })
  }
  return writes
}

/** Each message begins with a letter and with its length in four bytes. All messages here are short. */
function kindsOf (written: Written): string {
  const bytes = Buffer.isBuffer(written) ? written : Buffer.concat(written.map(({ chunk }) => chunk))
  return bytes.toString('latin1').match(/[A-Z](?=\0{3})/g)?.join('') ?? ''
}

t.test('a statement is parsed once, and its columns are never described', async (t) => {
  const database = openDatabase({ url, statementTimeoutMs })
  t.teardown(database.close)
  await database.read(one)
  const writes = watchWrites(t)
  const two = { name: 'two', text: 'select $1::int' }
  for (const value of [2, 3]) t.strictSame(await database.read(two, [value]), [[String(value)]])
  t.strictSame(writes.splice(0), ['PBES', 'BES'])
  await Promise.all(Array.from({ length: 10 }, () => database.read(one)))
  t.strictSame(writes, ['BES', 'BES'.repeat(9)], 'later statements of a tick share one write')
})

// The first tests run alone: they observe all connections of this process, and one blocks the event loop.
t.test('a lost or unresponsive connection is replaced, but a lagging event loop is no reason', async (t) => {
  const { proxy, database } = await openProxied(t, 1000)
  const events: string[] = []
  const listen = ({ event }: { event: string }) => { events.push(event) }
  connectionEvents.subscribe(listen)
  t.teardown(() => connectionEvents.unsubscribe(listen))
  proxy.cut()
  while (!events.includes('lost')) await delay(10)
  for (const read of [database.read, database.readHedged]) t.strictSame(await read(one), [['1']])
  // The look-up ran on the connection for reads, while its own connection was opened.
  while (events.length < 3) await delay(10)
  const late = database.read(one)
  // Block the event loop for 1.5 s.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500)
  t.strictSame(await late, [['1']])
  t.strictSame(events.splice(0), ['lost', 'opened', 'opened'])
  proxy.silence()
  const timedOut = Promise.all([0, 10].map((ms) => delay(ms).then(() => database.read(one))
    .catch(({ name }) => name)))
  t.strictSame(await database.readHedged(one), [['1']], 'a token look-up is sent again')
  t.strictSame(await database.read(one), [['1']], 'later statements use a new connection')
  t.strictSame(await timedOut, ['DATABASE_SLOW', 'DATABASE_SLOW'], 'the first timeout ends both')
  t.strictSame(events, ['timed_out', 'timed_out', 'opened', 'opened'])
  proxy.cut()
})

t.test('a result that has arrived counts, even if the event loop lags beyond the time limit', async (t) => {
  const now = performance.now.bind(performance)
  let passedMs = 0
  t.intercept(performance, 'now', { value: () => now() + passedMs })
  const connection = await createConnector({ url, statementTimeoutMs: 1000 }).connect()
  const result = connection.run(one, [])
  await new Promise(setImmediate)
  // The result arrives now, and the timer of the connection is due. The event loop runs timers first.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 200)
  passedMs = 5000
  t.strictSame(await result, [['1']])
  connection.close()
  await connection.closed
})

t.test('a database that accepts connections and does not respond counts as unavailable', async (t) => {
  const proxy = await openProxy(t, url)
  proxy.set('silent')
  const { app, log } = await startApp(t, { DATABASE_URL: proxy.url })
  const headers = { authorization: `Bearer ${createToken()}` }
  const responses = await Promise.all([app.inject({ url: '/plants', headers }), app.inject('/readyz')])
  for (const response of responses) isError(t, response, 50301, 'The database cannot be reached.')
  t.match(responses[0].headers, { 'retry-after': '1', 'www-authenticate': undefined })
  const failures = log.map((line) => JSON.parse(line)).filter(({ level, err }) => err && level !== 'debug')
  matchEach(t, failures.map(({ msg, err }) => `${msg}: ${err.message}`), [
    'not ready: no response within 800 ms',
    'a database connection could not be opened: no connection within 3000 ms',
    /: no connection within 3000 ms$/
  ])
})

t.test('a look-up is repeated on a new connection, not on another silenced one', async (t) => {
  const { proxy, database } = await openProxied(t, 5000)
  await database.open()
  proxy.silence()
  t.strictSame(await database.readHedged(one), [['1']])
  proxy.cut()
})

// The other tests mostly wait, so run them in parallel. After 60 s, PostgreSQL itself closes a connection.
t.jobs = 4
const options = { buffered: true, timeout: 50_000 }
const test = (title: string, run: (t: Test) => Promise<void>) => t.test(title, options, run)

test('a failed attempt to connect leaves no socket open and causes no unhandled error', async (t) => {
  const proxy = await openProxy(t, url)
  // The server waits for a password. The client has none, so the client must close the socket.
  const { read } = openDatabase({ url: proxy.url.replace(/:[^:]*@/, '@'), statementTimeoutMs })
  const cause = { message: /password must be a string/ }
  await t.rejects(read(one), { name: 'DATABASE_UNAVAILABLE', cause })
  while (proxy.connections().now > 0) await delay(10)
  await t.rejects(openClient(proxy.url.replace(/:[^:]*@/, '@'), {}), { name: 'DATABASE_UNAVAILABLE', cause })
  while (proxy.connections().now > 0) await delay(10)
})

test('a lost connection of a command causes no unhandled error', async (t) => {
  const client = await openClient(url, {})
  const ended = new Promise((resolve) => client.once('end', resolve))
  await t.rejects(client.query(end.text), { code: '57P01' })
  await ended
})

test('an error of the login is never the fault of a statement', async (t) => {
  const login = await createDatabase(t)
  await sql(url, `alter database ${new URL(login).pathname.slice(1)} allow_connections false`)
  const database = openDatabase({ url: login, statementTimeoutMs })
  t.teardown(database.close)
  await t.rejects(database.read(one), { name: 'DATABASE_UNAVAILABLE', cause: { code: '55000' } })
})

test('while three connections are closing, no fourth is opened', async (t) => {
  const managed = new ManagedConnection(createConnector({ url, statementTimeoutMs }).connect)
  const set = new ConnectionSet({ own: [managed] })
  const closing = []
  for (let count = 0; count < 3; count++) {
    await managed.open()
    const connection = managed.current as Connection
    // The connection stays open until this statement has ended.
    connection.run({ name: 'slow', text: 'select pg_sleep(60)' }, []).catch(() => {})
    connection.close()
    closing.push(connection)
  }
  await t.rejects(set.run('own', one),
    { name: 'DATABASE_UNAVAILABLE', cause: { message: '3 earlier connections have not ended' } })
  for (const connection of closing) connection.destroy()
  await Promise.all(closing.map(({ closed }) => closed))
  t.strictSame(await set.run('own', one), [['1']])
  await set.close()
})

test('a connection is unresponsive after eight checks, and closes only after its statements', async (t) => {
  const connection = await createConnector({ url, statementTimeoutMs: 0 }).connect()
  const calls: string[] = []
  const checkOften = (count: number) => { while (count-- > 0) connection.check() }
  connection.onUnresponsive = () => { calls.push('connection') }
  checkOften(9)
  t.strictSame(calls, [], 'an idle connection stays open')
  const pending = connection.run(one, [], () => { calls.push('statement') })
  checkOften(7)
  t.strictSame([connection.isUnresponsive, calls], [false, []])
  checkOften(2)
  t.strictSame([connection.isUnresponsive, calls], [true, ['connection', 'statement']], 'each is called once')
  const slow = { name: 'slow', text: "select current_setting('statement_timeout') from pg_sleep(1.5)" }
  const limit = connection.run(slow, [])
  await pending
  t.equal(connection.isUnresponsive, false, 'each result starts the count anew')
  connection.close()
  t.strictSame(await limit, [['0']], 'the time limit of the role applies')
  t.strictSame(calls, ['connection', 'statement'], 'a connection that closes is not replaced again')
  await connection.closed
})

test('while an attempt to connect hangs others are made, and a refused one does not end them', async (t) => {
  const { proxy, database } = await openProxied(t)
  await t.rejects(database.read(end))
  while (proxy.connections().now > 0) await delay(10)
  proxy.set('silent')
  const rows = database.read(one)
  while (proxy.connections().now === 0) await delay(10)
  proxy.set('closed')
  await delay(700)
  proxy.set('open')
  t.strictSame(await rows, [['1']])
})

test('the probe waits for no slow list, and fails only if no connection is open', async (t) => {
  const { proxy, database } = await openProxied(t)
  await untilItSucceeds(() => database.probe(['plants']))
  const client = await openSession(t, url, 'select pg_advisory_lock(1)')
  const list = database.read({ name: 'blocked', text: 'select pg_advisory_lock(1)' })
  const lookUp = database.readHedged(one)
  t.match(database.pending(), { read: 1, token: 1 })
  t.strictSame(await lookUp, [['1']], 'a token look-up waits for no slow list, either')
  await untilItSucceeds(() => database.probe(['plants']))
  await client.query('select pg_advisory_unlock(1)')
  await list
  proxy.set('closed')
  await t.rejects(database.read(end))
  t.strictSame(await database.read(one), [['1']], 'the connection of another kind runs the statement')
  await database.probe(['plants'])
  proxy.cut()
  while (proxy.connections().now > 0) await delay(10)
  await t.rejects(database.probe(['plants']), { name: 'DATABASE_UNAVAILABLE', cause: { code: 'ECONNRESET' } })
  proxy.set('open')
  await untilItSucceeds(() => database.probe(['plants']))
})

test('each kind of statement gets its connection before its first statement', async (t) => {
  const { proxy, database } = await openProxied(t)
  while (proxy.connections().now < 4) await database.open()
  await Promise.all([database.write(one), database.readLong(one), database.readHedged(one)])
  t.equal(proxy.connections().now, 4)
})

test('statements share the open connections while the server accepts no further ones', async (t) => {
  const role = `limited_${process.pid}`
  await sql(url, `create role ${role} login password 'secret' connection limit 1;
    grant select on plants, tokens to ${role}`)
  t.teardown(() => sql(url, `drop owned by ${role}; drop role ${role}`))
  const proxy = await openProxy(t, Object.assign(new URL(url), { username: role, password: 'secret' }).href)
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  t.teardown(database.close)
  await untilItSucceeds(() => database.readHedged(one))
  await database.open()
  const { read, readLong, readHedged, write, probe } = database
  const runAll = () =>
    Promise.all([...[read, readLong, readHedged, write, write].map((run) => run(one)), probe(['plants'])])
  // The server rejects (53300), refuses, or ignores attempts to connect.
  for (const mode of ['open', 'closed', 'silent'] as const) {
    proxy.set(mode)
    t.strictSame(await runAll(), [...Array(5).fill([['1']]), undefined], mode)
    t.ok(proxy.connections().now >= 1)
  }
})

test('while all connections wait for a lock, further statements wait, too', async (t) => {
  const client = await openSession(t, url, 'select pg_advisory_lock(2)')
  const { connect } = createConnector({ url, statementTimeoutMs })
  const managed = new ManagedConnection(connect)
  const set = new ConnectionSet({ own: [managed] })
  const blocked = { name: 'blocked', text: 'select 1 from pg_advisory_lock_shared(2)' }
  const waiting = []
  for (let count = 0; count < 3; count++) {
    // Each unresponsive connection is replaced by the next one.
    while (managed.isDown) await managed.open()
    waiting.push(set.run('own', blocked))
    while (!managed.isDown) await delay(10)
  }
  waiting.push(set.run('own', one))
  await client.query('select pg_advisory_unlock(2)')
  t.strictSame(await Promise.all(waiting), Array(4).fill([['1']]))
  await set.close()
})

test('while the only connection of a full server waits for a lock, further statements wait', async (t) => {
  const role = `single_${process.pid}`
  await sql(url, `create role ${role} login password 'secret' connection limit 1`)
  t.teardown(() => sql(url, `drop role ${role}`))
  const { href } = Object.assign(new URL(url), { username: role, password: 'secret' })
  const client = await openSession(t, url, 'select pg_advisory_lock(3)')
  // No server listens on port 1.
  for (const limited of [href, href.replace('@', '@127.0.0.1:1,')]) {
    const managed = new ManagedConnection(createConnector({ url: limited, statementTimeoutMs }).connect)
    const set = new ConnectionSet({ own: [managed] })
    // The server may still count the connection of the previous round.
    await untilItSucceeds(() => managed.open())
    const blocked = set.run('own', { name: 'blocked', text: 'select 1 from pg_advisory_lock_shared(3)' })
    while (!managed.isDown) await delay(10)
    const next = set.run('own', one)
    await t.rejects(managed.open())
    await client.query('select pg_advisory_unlock(3)')
    t.strictSame(await Promise.all([blocked, next]), Array(2).fill([['1']]))
    await set.close()
    await client.query('select pg_advisory_lock(3)')
  }
})

test('after transaction_timeout, later statements use another connection', async (t) => {
  const [version] = await sql(url, "select current_setting('server_version_num')::int as number")
  if (version?.number as number < 170_000) return
  const limited = `${url}?options=-c%20transaction_timeout%3D500`
  const managed = new ManagedConnection(createConnector({ url: limited, statementTimeoutMs }).connect)
  const set = new ConnectionSet({ own: [managed] })
  await managed.open()
  const slow = set.run('own', { name: 'slow', text: 'select pg_sleep(60)' }).catch((error) => error)
  const next = slow.then(() => set.run('own', one))
  t.match(await slow, { name: 'DATABASE_SLOW', cause: { code: '25P04' } })
  t.strictSame(await next, [['1']])
  await set.close()
})

test('errors about the server are distinguished from errors about the statement', async (t) => {
  for (const [codes, isUnavailable, isRolledBack] of [
    ['08006 25006 25P04 28000 3D000 53100 53300 57P05 58030 26000 42P05 42P01', true, false],
    ['40001 40P01 55P03 57014', true, true],
    ['42703 23514', false, true]
  ] as const) {
    for (const code of codes.split(' ')) {
      const error = toDatabaseError(Object.assign(new pg.DatabaseError('', 0, 'error'), { code }))
      t.strictSame([error instanceof ApiError, wasRolledBack(error)], [isUnavailable, isRolledBack], code)
    }
  }
})

test('later statements succeed after the server forgets one, ends or becomes read-only', async (t) => {
  const { database } = await openProxied(t)
  const quotient = { name: 'quotient', text: 'select 1 / $1::int' }
  t.strictSame(await database.read(quotient, [1]), [['1']])
  // An earlier error of the statement must not hide that the statement is not prepared.
  await t.rejects(database.read(quotient, [0]), { code: '22012' })
  // Make the server forget the statement, as if a pooler had switched to another server connection.
  await database.read({ name: 'forget', text: 'deallocate quotient' })
  t.strictSame(await database.read(quotient, [1]), [['1']])
  // PostgreSQL reports for the second statement only that it is not prepared.
  const wrong = { name: 'wrong', text: 'select no_column' }
  const results = await Promise.allSettled([database.read(wrong), database.read(wrong)])
  t.match(results, Array(2).fill({ status: 'rejected', reason: { code: '42703' } }))
  await t.rejects(database.read(end), { name: 'DATABASE_UNAVAILABLE' })
  t.strictSame(await database.read(one), [['1']])
  const setting = (name: string, value: string) =>
    database.read({ name: `set ${name}`, text: `select set_config('${name}', '${value}', false)` })
  const changes = await Promise.allSettled([
    setting('default_transaction_read_only', 'on'),
    // PostgreSQL reports this setting, too. A reload of the configuration may change both.
    setting('TimeZone', 'Asia/Tokyo'),
    database.read(one),
    setting('default_transaction_read_only', 'off'),
    database.read(one)
  ])
  t.strictSame(changes.map(({ status }) => status), Array(5).fill('rejected'), 'no more results')
  await untilItSucceeds(() => database.read(one))
})

test('a changed column type fails no request and does not turn batching off', async (t) => {
  const { as, url, log } = await startApp(t, { TOKEN_CACHE_TTL: '0' })
  const alice = await as('alice')
  const act = async () => {
    const ids = Array.from({ length: 20 }, (_, index) => index)
    const create = (id: number) => alice.create({ id, name: 'Fern' })
    for (const [send, status] of [[create, 200], [() => alice.list(), 200], [alice.delete, 204]] as const) {
      const responses = await Promise.all(ids.map(send))
      t.strictSame(responses.map(({ statusCode }) => statusCode), ids.map(() => status))
    }
  }
  await act()
  await sql(url, `
    alter table plants alter column owner type varchar(500), alter column name type varchar(5000);
    alter table tokens alter column label type varchar(500), alter column username type varchar(255)`)
  await act()
  // Warnings without a request may concern the connections of other tests.
  t.strictSame(log.filter((line) => /"(warn|error)".*"reqId"/.test(line)), [])
  const last = await sql(url, `select query from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database() and query ~ 'unnest'`)
  t.ok(last.length > 0, 'batches are still used')
})
