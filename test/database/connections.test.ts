import { EventEmitter, once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { openDatabase, type Database } from '../../src/database/database.ts'
import { wasRolledBack } from '../../src/database/pg-errors.ts'
import { ApiError } from '../../src/errors.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, sql, waitingForLocks } from '../support/database.ts'

// These tests mostly wait. Run them in parallel to save time.
t.jobs = 4
const test = (title: string, run: (t: Test) => Promise<void>) => t.test(title, { buffered: true }, run)

/** Long enough that no statement times out on a busy machine. */
const statementTimeoutMs = 60_000

const one = { name: 'one', text: 'select 1' }
const long = { name: 'long', text: 'select pg_sleep(1)' }

/** Calls `run` until it resolves. On a busy machine the first attempts to connect may fail. */
async function untilItSucceeds (run: () => Promise<unknown>): Promise<void> {
  while (!await run().then(() => true, () => false)) await delay(10)
}

test('after a refused connection the next statements are rejected without another attempt', async (t) => {
  const refusing = createServer((socket) => { socket.destroy() }).listen(0, '127.0.0.1')
  await once(refusing, 'listening')
  t.teardown(() => refusing.close())
  let attempts = 0
  refusing.on('connection', () => { attempts++ })
  const { port } = refusing.address() as AddressInfo
  const database = openDatabase({ url: `postgres://127.0.0.1:${port}/plants`, statementTimeoutMs })
  for (let read = 0; read < 200; read++) await t.rejects(database.read(one), { name: 'DATABASE_UNAVAILABLE' })
  t.ok(attempts < 200, `${attempts} attempts`)
  await database.close()
})

test('an unresponsive connection is replaced, and its statements no longer count as pending', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  await untilItSucceeds(() => database.read(one))
  proxy.silence()
  const lost = Promise.allSettled(Array.from({ length: 3 }, () => database.read(one)))
  t.equal(database.pending().read, 3)
  while (database.pending().read > 0) await delay(50)
  t.strictSame(await database.read(one), [['1']])
  t.equal(await Promise.race([lost, 'still pending']), 'still pending')
  proxy.cut()
  t.match(await lost, Array(3).fill({ status: 'rejected', reason: { name: 'DATABASE_UNAVAILABLE' } }))
  await database.close()
})

test('statements that hang do not use up the connections of the server', async (t) => {
  const url = await createDatabase(t)
  const client = new pg.Client(url)
  await client.connect()
  await client.query('begin; lock table plants')
  const database = openDatabase({ url, statementTimeoutMs })
  const replaced = new EventEmitter()
  database.onWarning((what) => { if (what.includes('unresponsive')) replaced.emit('replaced') })
  const hanging: Array<Promise<unknown>> = []
  const read = () => hanging.push(database.read({ name: 'hanging', text: 'select from plants' }))
  for (let connection = 0; connection < 2; connection++) {
    read()
    await once(replaced, 'replaced')
  }
  // These statements stay pending on the third connection. The service must not open a fourth connection.
  for (let statement = 0; statement < 5; statement++) read()
  while ((await sql(url, waitingForLocks)).length < 3) await delay(50)
  t.equal(database.pending().read, 5)
  await client.end()
  await Promise.all(hanging)
  await database.close()
})

test('close resolves when the connection breaks while its statements are pending', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  await untilItSucceeds(() => database.read(one))
  const lost = Promise.allSettled([database.read(long), database.read(one)])
  const closed = database.close()
  proxy.cut()
  await closed
  t.match(await lost, Array(2).fill({ status: 'rejected', reason: { name: 'DATABASE_UNAVAILABLE' } }))
})

test('a failed attempt to connect leaves no socket open and causes no unhandled error', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const url = new URL(proxy.url)
  // The server waits for a password. The client has none, so the client must close the socket.
  url.password = ''
  const locked = openDatabase({ url: url.href, statementTimeoutMs })
  const cause = { message: /password must be a string/ }
  await t.rejects(locked.read(one), { name: 'DATABASE_UNAVAILABLE', cause })
  while (proxy.connections().now > 0) await delay(10)

  const uncertified = `${proxy.url}?sslmode=verify-full&sslrootcert=nowhere.pem`
  const unreadable = openDatabase({ url: uncertified, statementTimeoutMs })
  await t.rejects(unreadable.read(one), { name: 'DATABASE_UNAVAILABLE', cause: { code: 'ENOENT' } })
})

/** Starts a read that waits for a lock until `unblock` is called. */
async function readBlocked (t: Test, database: Database, url: string) {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('select pg_advisory_lock(1)')
  const reading = database.read({ name: 'blocked', text: 'select pg_advisory_lock(1)' })
  return { reading, unblock: () => client.query('select pg_advisory_unlock(1)') }
}

test('a token look-up does not wait for slow reads', async (t) => {
  const { database, url } = await startApp(t)
  const { reading, unblock } = await readBlocked(t, database, url)
  t.strictSame(await database.readHedged(one), [['1']])
  await unblock()
  await reading
})

test('a token look-up on an unresponsive connection is hedged on a new connection', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  await untilItSucceeds(() => database.readHedged(one))
  proxy.silence()
  t.strictSame(await database.readHedged(one), [['1']])
  await database.close()
})

test('a token look-up gets its late result when the hedge finds no connection', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  await untilItSucceeds(() => database.readHedged(one))
  proxy.slow(700)
  proxy.set('closed')
  t.strictSame(await database.readHedged(one), [['1']])
  await database.close()
  await t.rejects(database.readHedged(one), { name: 'DATABASE_UNAVAILABLE', cause: { code: 'ECONNRESET' } })
})

test('with STATEMENT_TIMEOUT=0 the time limit of the role applies', async (t) => {
  const { database } = await startApp(t, { STATEMENT_TIMEOUT: '0' })
  t.strictSame(await database.read({ name: 'longer', text: 'select pg_sleep(1.2) is null' }), [['f']])
  t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [['0']])
})

test('by default the time limit of a statement is five seconds', async (t) => {
  const { database } = await startApp(t)
  t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [['5s']])
})

test('an idle connection stays open', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  await untilItSucceeds(() => database.read(one))
  // After a slow attempt to connect, the service may have two connections. Wait until one connection is left.
  while (proxy.connections().now > 1) await delay(10)
  proxy.forgetMost()
  await delay(1100)
  await Promise.all([database.read(one), database.read(one)])
  t.equal(proxy.connections().most, 1)
  await database.close()
})

test('an unresponsive connection is replaced any number of times', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  // Five rounds replace more connections than may be open at once.
  for (let round = 0; round < 5; round++) {
    await untilItSucceeds(() => database.read(one))
    proxy.silence()
    const lost = database.read(one)
    const reads = [lost]
    let rows
    while (rows === undefined) {
      reads.push(database.read(one))
      rows = await Promise.race([Promise.any(reads), delay(100)])
    }
    t.strictSame(rows, [['1']])
    proxy.cut()
    await t.rejects(lost, { name: 'DATABASE_UNAVAILABLE' })
  }
  await database.close()
})

test('after the server ends a connection the next statement uses a new one', async (t) => {
  const url = await createDatabase(t)
  const database = openDatabase({ url, statementTimeoutMs })
  await untilItSucceeds(() => database.read(one))
  const rows = database.read(long).catch(() => database.read(one))
  await sql(url, `select pg_terminate_backend(pid) from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database()`)
  t.strictSame(await rows, [['1']])
  await database.close()
})

test('while an attempt to connect hangs others are made, and a refused one does not end them', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  proxy.set('silent')
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  const rows = database.read(one)
  while (proxy.connections().now === 0) await delay(10)
  proxy.set('closed')
  await delay(700)
  proxy.set('open')
  t.strictSame(await rows, [['1']])
  await database.close()
})

test('statements that wait for a connection count as pending', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  proxy.set('silent')
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  const results = Promise.all([1, 2, 3].map(() => database.read(one)))
  t.equal(database.pending().read, 3)
  proxy.set('open')
  t.strictSame(await results, Array(3).fill([['1']]))
  await database.close()
})

test('close waits for an attempt to connect and for its statements', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const early = openDatabase({ url: proxy.url, statementTimeoutMs })
  const rows = early.read(one)
  await early.close()
  t.strictSame(await rows, [['1']])
  while (proxy.connections().now > 0) await delay(10)
})

test('the readiness probe does not wait for slow reads', async (t) => {
  const { database, url } = await startApp(t)
  const { reading, unblock } = await readBlocked(t, database, url)
  await database.probe()
  await unblock()
  await reading
})

test('the probe fails while lists have no connection, although other connections work', async (t) => {
  const url = await createDatabase(t)
  const proxy = await openProxy(t, url)
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  await untilItSucceeds(() => database.probe())
  await untilItSucceeds(() => database.read(one))
  proxy.set('closed')
  await sql(url, `select pg_terminate_backend(pid) from pg_stat_activity
    where query = 'select 1' and datname = current_database()`)
  while (await database.read(one).then(() => true, () => false)) await delay(10)
  t.strictSame(await database.write({ name: 'two', text: 'select 2' }), [['2']])
  await t.rejects(database.probe(), { code: 'ECONNRESET' })
  proxy.set('open')
  await untilItSucceeds(() => database.probe())
  await database.close()
})

// This test runs alone, because it blocks the event loop.
t.test('a lagging event loop does not count as an unresponsive database', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs })
  const warnings = new EventEmitter()
  database.onWarning((what, details) => { if (what.includes('event loop')) warnings.emit('lag', details) })
  await untilItSucceeds(() => database.read(one))
  // After a slow attempt to connect, the service may have two connections. Wait until one connection is left.
  while (proxy.connections().now > 1) await delay(10)
  proxy.forgetMost()
  const rows = database.read(one)
  const lagged = once(warnings, 'lag')
  // Block the event loop for 1.5 s.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500)
  t.match(await lagged, [{ lagMs: Number }])
  t.strictSame(await rows, [['1']])
  t.equal(proxy.connections().most, 1)
  await database.close()
})

test('a statement on an unresponsive connection fails with DATABASE_SLOW after its time limit', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  const warnings = new EventEmitter()
  database.onWarning((what, details) => {
    if (what.includes('unresponsive')) warnings.emit('replaced', details)
  })
  await untilItSucceeds(() => database.read(one))
  proxy.silence()
  const lost = database.read(one).catch(({ name }) => name)
  t.strictSame(await once(warnings, 'replaced'), [{ replaced: 1 }])
  t.equal(await lost, 'DATABASE_SLOW')
  await database.close()
})

test('errors about the server are distinguished from errors about the statement', async (t) => {
  const { database } = await startApp(t)
  const states: Array<[state: string, isUnavailable: boolean, isRolledBack: boolean]> = [
    ['08006', true, false], ['25006', true, false], ['28000', true, false], ['3D000', true, false],
    ['53100', true, false], ['53300', true, false], ['57P05', true, false], ['58030', true, false],
    ['26000', true, false], ['42P05', true, false], ['42P01', true, false], ['40001', true, true],
    ['40P01', true, true], ['57014', true, true], ['42703', false, true], ['23514', false, true]
  ]
  for (const [state, isUnavailable, isRolledBack] of states) {
    const text = `do $$ begin raise exception using errcode = '${state}'; end $$`
    const error = await database.write({ name: state, text }).then(() => {}, (error) => error)
    t.strictSame([error instanceof ApiError, wasRolledBack(error)], [isUnavailable, isRolledBack], state)
  }
})
