// Tests connections to real servers and to proxies with faults. managed-connection-orders.test.ts runs the
// events of a connection in random orders.
import { EventEmitter, once } from 'node:events'
import { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { Connection } from '../../src/database/connection.ts'
import { createConnector } from '../../src/database/connector.ts'
import { openDatabase } from '../../src/database/database.ts'
import { ManagedConnection } from '../../src/database/managed-connection.ts'
import { toDatabaseError, wasRolledBack } from '../../src/database/pg-errors.ts'
import { ApiError } from '../../src/errors.ts'
import { connectionEvents } from '../../src/events.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, openSession, sql } from '../support/database.ts'
import { matchEach } from '../support/match.ts'

/** Long enough that no statement times out on a busy machine. */
const statementTimeoutMs = 60_000

const one = { name: 'one', text: 'select 1' }
const url = await createDatabase(t)

/** Calls `run` until it resolves. On a busy machine the first attempts to connect may fail. */
async function untilItSucceeds (run: () => Promise<unknown>): Promise<void> {
  while (!await run().then(() => true, () => false)) await delay(10)
}

/** Opens the database through a proxy. Emits each warning as an event with its details. */
async function openProxied (t: Test, options: { statementTimeoutMs?: number, url?: string } = {}) {
  const proxy = await openProxy(t, options.url ?? url)
  const database = openDatabase({ statementTimeoutMs, ...options, url: proxy.url })
  t.teardown(() => database.close())
  const warnings = new EventEmitter()
  database.onWarning((_, details) => { warnings.emit('unresponsive', details) })
  return { proxy, database, warnings }
}

/** Records the messages of each write to the server: P is Parse, B is Bind, E is Execute, S is Sync. */
function watchWrites (t: Test): string[] {
  const writes: string[] = []
  const watch = (socket: Socket, pieces: Buffer[]) => {
    if (socket.remotePort === Number(new URL(url).port)) writes.push(kindsOf(Buffer.concat(pieces)))
  }
  const { _write, _writev } = Socket.prototype
  t.teardown(() => Object.assign(Socket.prototype, { _write, _writev }))
  Object.assign(Socket.prototype, {
    _write (this: Socket, chunk: Buffer, ...rest: [BufferEncoding, () => void]) {
      watch(this, [chunk])
      return _write.call(this, chunk, ...rest)
    },
    _writev (this: Socket, chunks: Array<{ chunk: Buffer, encoding: BufferEncoding }>, done: () => void) {
      watch(this, chunks.map(({ chunk }) => chunk))
      return _writev?.call(this, chunks, done)
    }
  })
  return writes
}

/** Returns the first byte of each message, a letter. The next four bytes are the message's length. */
function kindsOf (bytes: Buffer): string {
  let kinds = ''
  for (let at = 0; at < bytes.length; at += 1 + bytes.readInt32BE(at + 1)) {
    kinds += String.fromCharCode(bytes.readUInt8(at))
  }
  return kinds
}

t.test('a statement is parsed once, and its columns are never described', async (t) => {
  const database = openDatabase({ url, statementTimeoutMs })
  t.teardown(() => database.close())
  await database.read(one)
  const writes = watchWrites(t)
  const two = { name: 'two', text: 'select $1::int' }
  for (const value of [2, 3]) t.strictSame(await database.read(two, [value]), [[String(value)]])
  t.strictSame(writes.splice(0), ['PBES', 'BES'])
  await Promise.all(Array.from({ length: 10 }, () => database.read(one)))
  t.strictSame(writes, ['BES', 'BES'.repeat(9)], 'later statements of a tick share one write')
})

// The first three tests run alone: they observe all connections, and block the event loop.
t.test('one event tells why a connection ended: lost, or timed out', async (t) => {
  const { proxy, database, warnings } = await openProxied(t, { statementTimeoutMs: 100 })
  const steps = new EventEmitter()
  const events: string[] = []
  const listen = ({ event }: { event: string }) => {
    events.push(event)
    steps.emit(event)
  }
  await untilItSucceeds(() => database.read(one))
  connectionEvents.subscribe(listen)
  t.teardown(() => connectionEvents.unsubscribe(listen))
  const lost = once(steps, 'lost')
  proxy.cut()
  await lost
  await database.read(one)
  proxy.silence()
  const replaced = once(warnings, 'unresponsive')
  const timedOut = Promise.all([1, 2].map(() => database.read(one).catch(({ name }) => name)))
  t.strictSame(await replaced, [{ replaced: 1 }])
  t.strictSame(await database.read(one), [['1']], 'later statements use a new connection')
  t.strictSame(await timedOut, ['DATABASE_SLOW', 'DATABASE_SLOW'])
  t.strictSame(events, ['lost', 'opened', 'timed_out', 'opened'])
  proxy.cut()
})

t.test('a lagging event loop does not count as an unresponsive database', async (t) => {
  const { proxy, database } = await openProxied(t)
  await untilItSucceeds(() => database.read(one))
  // After a slow attempt to connect, the service may have two connections. Wait until one connection is left.
  while (proxy.connections().now > 1) await delay(10)
  proxy.forgetMost()
  const rows = database.read(one)
  // Block the event loop for 1.5 s.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500)
  t.strictSame(await rows, [['1']])
  t.equal(proxy.connections().most, 1)
})

// The other tests mostly wait. Run them in parallel to save time.
t.jobs = 4
const test = (title: string, run: (t: Test) => Promise<void>) => t.test(title, { buffered: true }, run)

test('close resolves when the connection breaks while its statements are pending', async (t) => {
  const { proxy, database } = await openProxied(t)
  await untilItSucceeds(() => database.read(one))
  const long = { name: 'long', text: 'select pg_sleep(60)' }
  const lost = Promise.allSettled([database.read(long), database.read(one)])
  const closed = database.close()
  proxy.cut()
  await closed
  t.match(await lost, Array(2).fill({ status: 'rejected', reason: { name: 'DATABASE_UNAVAILABLE' } }))
})

test('a failed attempt to connect leaves no socket open and causes no unhandled error', async (t) => {
  const proxy = await openProxy(t, url)
  const locked = new URL(proxy.url)
  // The server waits for a password. The client has none, so the client must close the socket.
  locked.password = ''
  const cause = { message: /password must be a string/ }
  await t.rejects(openDatabase({ url: locked.href, statementTimeoutMs }).read(one),
    { name: 'DATABASE_UNAVAILABLE', cause })
  while (proxy.connections().now > 0) await delay(10)

  const uncertified = `${proxy.url}?sslmode=verify-full&sslrootcert=nowhere.pem`
  await t.rejects(openDatabase({ url: uncertified, statementTimeoutMs }).read(one),
    { name: 'DATABASE_UNAVAILABLE', cause: { code: 'ENOENT' } })
})

test('while three connections are closing, no fourth is opened', async (t) => {
  const connect = createConnector({ url, statementTimeoutMs })
  const managed = new ManagedConnection(connect)
  const closing: Connection[] = []
  for (let count = 0; count < 3; count++) {
    const connection = await managed.opened()
    // The connection stays open until this statement has ended.
    connection.run({ name: 'slow', text: 'select pg_sleep(60)' }, []).catch(() => {})
    connection.close()
    closing.push(connection)
  }
  await t.rejects(managed.run(one, []),
    { name: 'DATABASE_UNAVAILABLE', cause: { message: '3 earlier connections are still closing' } })
  for (const connection of closing) connection.destroy()
  await Promise.all(closing.map(({ closed }) => closed))
  t.strictSame(await managed.run(one, []), [['1']])
  await managed.close()
})

test('a connection closes only after its statements, however long they take', async (t) => {
  const connection = await createConnector({ url, statementTimeoutMs })()
  const rows = connection.run({ name: 'slow', text: "select 'done' from pg_sleep(1.5)" }, [])
  connection.close()
  t.strictSame(await rows, [['done']])
  await connection.closed
})

test('neither a token look-up nor the readiness probe waits for slow reads', async (t) => {
  const { database } = await startApp(t, { DATABASE_URL: url })
  const client = await openSession(t, url, 'select pg_advisory_lock(1)')
  const reading = database.read({ name: 'blocked', text: 'select pg_advisory_lock(1)' })
  const lookUp = database.readHedged(one)
  t.match(database.pending(), { read: 1, token: 1 })
  t.strictSame(await lookUp, [['1']])
  await database.probe()
  await client.query('select pg_advisory_unlock(1)')
  await reading
})

test('a token look-up on an unresponsive connection is hedged on a new connection', async (t) => {
  const proxy = await openProxy(t, url)
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  t.teardown(() => database.close())
  await untilItSucceeds(() => database.readHedged(one))
  proxy.silence()
  t.strictSame(await database.readHedged(one), [['1']])
  proxy.cut()
})

test('STATEMENT_TIMEOUT limits a statement, and with 0 the time limit of the role applies', async (t) => {
  for (const [environment, limit] of [[{}, '5s'], [{ STATEMENT_TIMEOUT: '0' }, '0']] as const) {
    const { database } = await startApp(t, { DATABASE_URL: url, ...environment })
    t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [[limit]])
    if (limit !== '0') continue
    t.strictSame(await database.read({ name: 'longer', text: 'select pg_sleep(1.2) is null' }), [['f']])
  }
})

test('a connection is unresponsive after eight checks with pending statements', async (t) => {
  const connection = new Connection({ url, statementTimeoutMs })
  await connection.connect()
  const countChecks = () => Array.from({ length: 9 }, () => connection.check())
  await connection.run(one, [])
  t.strictSame(countChecks(), Array(9).fill(false), 'an idle connection stays open')
  const pending = connection.run(one, [])
  t.strictSame(countChecks(), [...Array(7).fill(false), true, true])
  const later = connection.run({ name: 'short', text: 'select pg_sleep(0.2)' }, [])
  await pending
  t.equal(connection.check(), false, 'each result starts the count anew')
  await later
  connection.close()
  await connection.closed
})

test('after the server ends a connection the next statement uses a new one', async (t) => {
  const { database } = await openProxied(t)
  const end = { name: 'end', text: 'select pg_terminate_backend(pg_backend_pid())' }
  await untilItSucceeds(() => database.read(one))
  await t.rejects(database.read(end), { name: 'DATABASE_UNAVAILABLE' })
  t.strictSame(await database.read(one), [['1']])
})

test('while an attempt to connect hangs others are made, and a refused one does not end them', async (t) => {
  const { proxy, database } = await openProxied(t)
  proxy.set('silent')
  const rows = database.read(one)
  while (proxy.connections().now === 0) await delay(10)
  proxy.set('closed')
  await delay(700)
  proxy.set('open')
  t.strictSame(await rows, [['1']])
})

test('the probe fails while lists have no connection, although other connections work', async (t) => {
  const { proxy, database } = await openProxied(t, { url: await createDatabase(t) })
  await untilItSucceeds(() => database.probe())
  await untilItSucceeds(() => database.read(one))
  proxy.set('closed')
  await t.rejects(database.read({ name: 'end', text: 'select pg_terminate_backend(pg_backend_pid())' }))
  while (await database.read(one).then(() => true, () => false)) await delay(10)
  t.strictSame(await database.write({ name: 'two', text: 'select 2' }), [['2']])
  await t.rejects(database.probe(), { code: 'ECONNRESET' })
  proxy.set('open')
  await untilItSucceeds(() => database.probe())
})

test('a database that accepts connections and does not respond counts as unavailable', async (t) => {
  const proxy = await openProxy(t, url)
  proxy.set('silent')
  const { app, log } = await startApp(t, { DATABASE_URL: proxy.url })

  const unavailable = { error: 50301, message: 'The database cannot be reached.' }
  const [list, ready] = await Promise.all([
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } }),
    app.inject('/readyz')
  ])
  t.strictSame([list.statusCode, list.json()], [503, unavailable])
  t.match(list.headers, { 'retry-after': '1', 'www-authenticate': undefined })
  t.strictSame([ready.statusCode, ready.json()], [503, unavailable])
  const lines = log.map((line) => JSON.parse(line))
  const reasons = lines.filter(({ level, err }) => /warn|error/.test(level) && err).map(({ err }) => err)
  matchEach(t, reasons,
    [{ message: 'no response within 800 ms' }, { message: 'no connection within 3000 ms' }])
})

test('errors about the server are distinguished from errors about the statement', async (t) => {
  const states: Array<[states: string, isUnavailable: boolean, isRolledBack: boolean]> = [
    ['08006 25006 28000 3D000 53100 53300 57P05 58030 26000 42P05 42P01', true, false],
    ['40001 40P01 55P03 57014', true, true],
    ['42703 23514', false, true]
  ]
  for (const [codes, isUnavailable, isRolledBack] of states) {
    for (const code of codes.split(' ')) {
      const error = toDatabaseError(Object.assign(new pg.DatabaseError('', 0, 'error'), { code }))
      t.strictSame([error instanceof ApiError, wasRolledBack(error)], [isUnavailable, isRolledBack], code)
    }
  }
})

test('a connection whose server has become read-only delivers no more results', async (t) => {
  const { database } = await openProxied(t)
  await untilItSucceeds(() => database.read(one))
  const setting = (name: string, value: string) =>
    database.read({ name: `set ${name}`, text: `select set_config('${name}', '${value}', false)` })
  const results = await Promise.allSettled([
    setting('default_transaction_read_only', 'on'),
    // PostgreSQL reports this setting, too. A reload of the configuration may change both.
    setting('TimeZone', 'Asia/Tokyo'),
    database.read(one),
    setting('default_transaction_read_only', 'off'),
    database.read(one)
  ])
  t.strictSame(results.map(({ status }) => status), Array(5).fill('rejected'))
  await untilItSucceeds(() => database.read(one))
})

test('a changed column type fails no request and does not turn batching off', async (t) => {
  const { database, as, url, log } = await startApp(t, { TOKEN_CACHE_TTL: '0' })
  const alice = await as('alice')
  const act = async (from: number) => {
    const ids = Array.from({ length: 20 }, (_, index) => from + index)
    const create = (id: number) => alice.create({ id, name: 'Fern' })
    for (const [send, status] of [[create, 200], [() => alice.list(), 200], [alice.delete, 204]] as const) {
      const responses = await Promise.all(ids.map(send))
      t.strictSame(responses.map(({ statusCode }) => statusCode), ids.map(() => status))
    }
  }
  await act(0)
  await sql(url, `
    alter table plants alter column owner type varchar(500), alter column name type varchar(5000);
    alter table tokens alter column label type varchar(500), alter column username type varchar(255)`)
  await database.probe()
  await act(100)
  t.strictSame(log.filter((line) => /"(warn|error)"/.test(line)), [])
  const last = await sql(url, `select query from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database() and query ~ 'unnest'`)
  t.ok(last.length > 0, 'batches are still used')
})

test('a statement that the server has forgotten is prepared again', async (t) => {
  const { database } = await openProxied(t)
  const quotient = { name: 'quotient', text: 'select 1 / $1::int' }
  await untilItSucceeds(() => database.read(quotient, [1]))
  // An earlier error of the statement must not hide that the statement is not prepared.
  await t.rejects(database.read(quotient, [0]), { code: '22012' })
  // Make the server forget the statement, as if a pooler had switched to another server connection.
  await database.read({ name: 'forget', text: 'deallocate quotient' })
  t.strictSame(await database.read(quotient, [1]), [['1']])
  // PostgreSQL reports for the second statement only that it is not prepared.
  const wrong = { name: 'wrong', text: 'select no_column' }
  const results = await Promise.allSettled([database.read(wrong), database.read(wrong)])
  t.match(results, Array(2).fill({ status: 'rejected', reason: { code: '42703' } }))
})
