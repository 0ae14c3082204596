// Tests connections to real servers and to proxies with faults.
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createToken } from '../../src/access/tokens.ts'
import { Backoff } from '../../src/database/backoff.ts'
import { openDatabase } from '../../src/database/database.ts'
import { toDatabaseError, wasRolledBack } from '../../src/database/pg-errors.ts'
import { openClient } from '../../src/database/servers.ts'
import { ApiError } from '../../src/errors.ts'
import { connectionEvents } from '../../src/telemetry-events.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, openSession, sql, waitingForLocks } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { matchEach } from '../support/match.ts'
import { stopClock } from '../support/orders.ts'

/** Long enough that no statement times out on a busy machine. */
const statementTimeoutMs = 60_000

const one = { name: 'one', text: 'select 1' }
const end = { name: 'end', text: 'select pg_terminate_backend(pg_backend_pid())' }
const backend = { name: 'backend', text: 'select pg_backend_pid()' }
const url = await createDatabase(t)

/** Calls `run` until it resolves. On a busy machine the first attempts to connect may fail. */
async function untilItSucceeds (run: () => Promise<unknown>): Promise<void> {
  while (!await run().then(() => true, () => false)) await delay(10)
}

/** Opens the database, and its connection for `read`. */
async function open (t: Test, url: string, timeoutMs = statementTimeoutMs) {
  const database = openDatabase({ url, statementTimeoutMs: timeoutMs })
  t.teardown(database.close)
  await untilItSucceeds(() => database.read(one))
  return database
}

function watchEvents (t: Test): string[] {
  const events: string[] = []
  const listen = ({ event }: { event: string }) => { events.push(event) }
  connectionEvents.subscribe(listen)
  t.teardown(() => connectionEvents.unsubscribe(listen))
  return events
}

/** A role that may open `limit` connections. Returns the URL of the database for the role. */
async function limitRole (t: Test, name: string, limit: number): Promise<string> {
  const role = `${name}_${process.pid}`
  await sql(url, `create role ${role} login password 'secret' connection limit ${limit};
    grant select on plants, tokens to ${role}`)
  t.teardown(() => sql(url, `drop owned by ${role}; drop role ${role}`))
  return Object.assign(new URL(url), { username: role, password: 'secret' }).href
}

t.test('a connection runs one statement at a time, and prepares each statement once', async (t) => {
  const database = await open(t, url)
  const prepared = { name: 'prepared', text: 'select name from pg_prepared_statements order by name' }
  for (const value of ['2', null]) {
    t.strictSame(await database.read({ name: 'two', text: 'select $1::int, 3' }, [value]), [[value, '3']])
  }
  t.strictSame(await database.read(prepared), [['one'], ['prepared'], ['session'], ['two']])
  const slow = { name: 'slow', text: 'select pg_backend_pid() from pg_sleep(0.01)' }
  const sleepers = Array.from({ length: 5 }, () => database.read(slow))
  const used = new Set((await Promise.all(sleepers)).map(([row]) => row?.[0]))
  t.equal(used.size, 2, 'further statements wait for one of the two connections')
})

// The first tests run alone: they observe all connections of this process, and one blocks the event loop.
t.test('a lost connection is replaced, and a lagging event loop is no timeout', async (t) => {
  const events = watchEvents(t)
  const proxy = await openProxy(t, url)
  const database = await open(t, proxy.url, 1000)
  t.strictSame(events.splice(0).at(-1), 'opened')
  proxy.cut()
  while (!events.includes('lost')) await delay(10)
  t.strictSame(await database.read(one), [['1']])
  t.strictSame(events.splice(0), ['lost', 'opened'])

  // Without the proxy, which belongs to this process, too.
  const direct = await open(t, url, 1000)
  const late = direct.read(one)
  // The statement is sent in this tick. Afterwards, the event loop runs timers before it reads the result.
  await new Promise(setImmediate)
  // Block the event loop for longer than the time limit of a result.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 2500)
  t.strictSame(await late, [['1']])
  t.strictSame(events, ['opened'])
})

t.test('a connection without a result is reset, and its statement never reaches the server', async (t) => {
  const events = watchEvents(t)
  const { port, hostname } = new URL(url)
  const sockets: Array<{ near: Socket, code?: string }> = []
  // Forwards all bytes until the test pauses the connection. The server never learns that the client is gone.
  const server = createServer((near) => {
    const far = connect(Number(port), hostname)
    const entry: typeof sockets[0] = { near }
    sockets.push(entry)
    near.on('error', ({ code }: NodeJS.ErrnoException) => { entry.code = code })
    near.pipe(far).pipe(near)
    far.on('error', () => {})
    t.teardown(() => { for (const socket of [near, far]) socket.destroy() })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port: proxyPort } = server.address() as AddressInfo
  // A container's server may have another host than this process.
  const database = await open(t, Object.assign(new URL(url), { host: `127.0.0.1:${proxyPort}` }).href, 1000)
  const [[session] = []] = await database.read(backend)
  events.length = 0
  const [paused] = sockets.splice(0)
  paused?.near.unpipe()
  const cause = { message: 'no result in time' }
  await t.rejects(database.read(one), { name: 'DATABASE_SLOW', cause })
  paused?.near.resume()
  while (paused?.code === undefined) await delay(10)
  t.equal(paused.code, 'ECONNRESET')
  t.strictSame(await database.read(one), [['1']], 'a later statement uses a new connection')
  t.strictSame(events, ['timed_out', 'opened'])
  const left = () => sql(url, 'select from pg_stat_activity where pid = $1', [session])
  while ((await left()).length > 0) await delay(10)
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

t.test('after each failure the pause before the next attempt to connect doubles, up to 400 ms', async (t) => {
  const advance = stopClock(t)
  const backoff = new Backoff()
  const attempts: number[] = []
  for (let ms = 0; ms <= 1600; ms += 25) {
    if (backoff.error === undefined) {
      attempts.push(ms)
      // Several kinds of statements may fail together.
      for (const name of ['one', 'two']) backoff.fail(new Error(name))
    }
    t.match(backoff.error, { message: 'one' })
    advance(25)
  }
  t.strictSame(attempts, [0, 25, 75, 175, 375, 775, 1175, 1575])
  backoff.succeed()
  t.equal(backoff.error, undefined)
})

// The other tests mostly wait, so run them in parallel. After 60 s, PostgreSQL itself closes a connection.
t.jobs = 4
const options = { buffered: true, timeout: 50_000 }
const test = (title: string, run: (t: Test) => Promise<void>) => t.test(title, options, run)

test('a failed attempt to connect leaves no socket open and causes no unhandled error', async (t) => {
  const proxy = await openProxy(t, url)
  // The server waits for a password. The client has none, so the client must close the socket.
  const withoutPassword = proxy.url.replace(/:[^:]*@/, '@')
  const { read } = openDatabase({ url: withoutPassword, statementTimeoutMs })
  const rejection = { name: 'DATABASE_UNAVAILABLE', cause: { message: /password must be a string/ } }
  await t.rejects(read(one), rejection)
  await t.rejects(openClient(withoutPassword, {}), rejection)
  while (proxy.connections().now > 0) await delay(10)
})

test('a lost connection of a command causes no unhandled error', async (t) => {
  const client = await openClient(url, {})
  const ended = new Promise((resolve) => client.once('end', resolve))
  await t.rejects(client.query(end.text), { code: '57P01' })
  await ended
})

test('connect_timeout shortens the time of an attempt to connect', async (t) => {
  const proxy = await openProxy(t, url)
  proxy.set('silent')
  await t.rejects(openClient(`${proxy.url}?connect_timeout=1`, {}),
    { cause: { message: 'no connection within 1000 ms' } })
})

test('a server behind a Unix socket that does not respond counts as unavailable', async (t) => {
  const folder = await mkdtemp(join(tmpdir(), 'socket-'))
  t.teardown(() => rm(folder, { recursive: true, force: true }))
  const server = createServer().listen(join(folder, '.s.PGSQL.5432'))
  await once(server, 'listening')
  t.teardown(() => server.close())
  const unavailable = { cause: { message: 'no connection within 1000 ms' } }
  await t.rejects(openClient(`postgres:///db?host=${folder}&connect_timeout=1`, {}), unavailable)
})

test('an error of the login is never the fault of a statement', async (t) => {
  const login = await createDatabase(t)
  await sql(url, `alter database ${new URL(login).pathname.slice(1)} allow_connections false`)
  const database = openDatabase({ url: login, statementTimeoutMs })
  t.teardown(database.close)
  await t.rejects(database.read(one), { name: 'DATABASE_UNAVAILABLE', cause: { code: '55000' } })
})

test('no look-up and no probe waits for lists or writes', async (t) => {
  const database = await open(t, url)
  const client = await openSession(t, url, 'select pg_advisory_lock(1)')
  const blocked = { name: 'blocked', text: 'select 1 from pg_advisory_lock_shared(1)' }
  const { read, readLong, write } = database
  const waiting = [read, read, readLong, readLong, write].map((run) => run(blocked))
  while ((await client.query(waitingForLocks)).rowCount !== waiting.length) await delay(10)
  const queued = read(one)
  t.match(database.pending(), { read: 3, long_read: 2, write_batch: 0, write: 1, token: 0 })
  t.strictSame(await database.lookUp(one), [['1']])
  await database.probe(['plants', 'tokens'])
  await client.query('select pg_advisory_unlock(1)')
  t.strictSame(await Promise.all([...waiting, queued]), Array(6).fill([['1']]))
})

test('a batch waits only briefly for a lock', async (t) => {
  const database = await open(t, url)
  await sql(url, "insert into plants (owner, id, name) values ('locked', 1, 'Fern')")
  await openSession(t, url, "begin; select from plants where owner = 'locked' for update")
  const remove = { name: 'remove', text: "delete from plants where owner = 'locked'" }
  const error = await database.writeBatch(remove).catch((error) => error)
  t.match(error, { name: 'DATABASE_SLOW', cause: { code: '55P03' } })
  t.ok(wasRolledBack(error))
})

test('while the server accepts no further connection, statements wait for the open ones', async (t) => {
  // One connection for each kind.
  const limited = await limitRole(t, 'limited', 5)
  const database = openDatabase({ url: limited, statementTimeoutMs })
  t.teardown(database.close)
  const { read, readLong, lookUp, write, writeBatch } = database
  const kinds = [read, readLong, lookUp, write, writeBatch]
  await Promise.all(kinds.map((run) => untilItSucceeds(() => run(one))))
  const runs = kinds.flatMap((run) => [run, run, run])
  t.strictSame(await Promise.all(runs.map((run) => run(one))), runs.map(() => [['1']]))
  t.equal(database.pending().read, 0)
})

test('each kind of statement gets its connection before its first statement', async (t) => {
  const proxy = await openProxy(t, url)
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  t.teardown(database.close)
  while (proxy.connections().now < 5) await database.open()
  const { write, writeBatch, readLong, lookUp } = database
  await Promise.all([write, writeBatch, readLong, lookUp].map((run) => run(one)))
  t.equal(proxy.connections().most, 5)
})

test('after transaction_timeout, later statements use another connection', async (t) => {
  const [version] = await sql(url, "select current_setting('server_version_num')::int as number")
  if (version?.number as number < 170_000) return
  const database = await open(t, `${url}?options=-c%20transaction_timeout%3D500`)
  const slow = { name: 'slow', text: 'select pg_sleep(60)' }
  await t.rejects(database.read(slow), { name: 'DATABASE_SLOW', cause: { code: '25P04' } })
  t.strictSame(await database.read(one), [['1']])
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

test('later statements succeed after the server forgets one, ends or becomes writable again', async (t) => {
  const database = await open(t, url)
  const quotient = { name: 'quotient', text: 'select 1 / $1::int' }
  t.strictSame(await database.read(quotient, [1]), [['1']])
  await t.rejects(database.read(quotient, [0]), { code: '22012' })
  // Make the server forget the statement, as if a pooler had switched to another server connection.
  await database.read({ name: 'forget', text: 'deallocate quotient' })
  t.strictSame(await database.read(quotient, [1]), [['1']])
  await t.rejects(database.read(end), { name: 'DATABASE_UNAVAILABLE' })
  t.strictSame(await database.read(one), [['1']])

  const readOnly = "select set_config('default_transaction_read_only', 'on', false)"
  const create = { name: 'create', text: "insert into plants (owner, id, name) values ('ro', 1, 'Fern')" }
  await database.write({ name: 'read only', text: readOnly })
  await t.rejects(database.write(create), { name: 'DATABASE_READ_ONLY', cause: { code: '25006' } })
  t.strictSame(await database.read(one), [['1']], 'reads go on')
  await untilItSucceeds(() => database.write(create))
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
