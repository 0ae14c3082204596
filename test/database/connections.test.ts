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

// They wait, most of the time.
t.jobs = 6

const one = { name: 'one', text: 'select 1' }
const long = { name: 'long', text: 'select pg_sleep(1)' }

t.test('after a refused connection the requests that follow are answered without trying again', { buffered: true }, async (t) => {
  const refusing = createServer((socket) => { socket.destroy() }).listen(0, '127.0.0.1')
  await once(refusing, 'listening')
  t.teardown(() => refusing.close())
  let attempts = 0
  refusing.on('connection', () => { attempts++ })
  const { port } = refusing.address() as AddressInfo
  const database = openDatabase({ url: `postgres://127.0.0.1:${port}/plants`, statementTimeoutMs: 1000 })
  for (let asked = 0; asked < 200; asked++) await t.rejects(database.read(one), { name: 'DATABASE_UNAVAILABLE' })
  t.ok(attempts < 200, `${attempts} attempts`)
  await database.close()
})

t.test('an unresponsive connection is replaced, and its statements no longer count as pending', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  await database.read(one)
  proxy.silence()
  const lost = Promise.allSettled(Array.from({ length: 3 }, () => database.read(one)))
  t.equal(database.pending().read, 3)
  while (database.pending().read > 0) await delay(50)
  t.strictSame(await database.read(one), [['1']])
  t.equal(await Promise.race([lost, 'still pending']), 'still pending')
  t.match(await lost, Array(3).fill({ status: 'rejected', reason: { name: 'DATABASE_SLOW' } }))
  await database.close()
})

t.test('statements that hang do not use up the server\'s connections', { buffered: true }, async (t) => {
  const url = await createDatabase(t)
  const client = new pg.Client(url)
  await client.connect()
  await client.query('begin; lock table plants')
  const database = openDatabase({ url, statementTimeoutMs: 60_000 })
  const replaced = new EventEmitter()
  database.onWarning(() => { replaced.emit('replaced') })
  const hanging: Array<Promise<unknown>> = []
  const read = () => hanging.push(database.read({ name: 'hanging', text: 'select from plants' }))
  for (let connection = 0; connection < 2; connection++) {
    read()
    await once(replaced, 'replaced')
  }
  // The third connection is not replaced: its statements stay pending.
  for (let statement = 0; statement < 5; statement++) read()
  while ((await sql(url, waitingForLocks)).length < 3) await delay(50)
  t.equal(database.pending().read, 5)
  await client.end()
  await Promise.all(hanging)
  await database.close()
})

t.test('a connection that breaks while it is waited for ends as well', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  await database.read(one)
  const lost = Promise.allSettled([database.read(long), database.read(one)])
  const closed = database.close()
  proxy.cut()
  await closed
  t.match(await lost, Array(2).fill({ status: 'rejected', reason: { name: 'DATABASE_UNAVAILABLE' } }))
})

t.test('a connection that could not be made is left neither open nor being tried', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const url = new URL(proxy.url)
  // The server asks for it, and waits.
  url.password = ''
  const locked = openDatabase({ url: url.href, statementTimeoutMs: 1000 })
  await t.rejects(locked.read(one), { name: 'DATABASE_UNAVAILABLE', cause: { message: /password must be a string/ } })
  while (proxy.connections().now > 0) await delay(10)

  const unreadable = openDatabase({ url: `${proxy.url}?sslmode=verify-full&sslrootcert=nowhere.pem`, statementTimeoutMs: 1000 })
  // Tried on and on its error would be nobody's, and end this process.
  await t.rejects(unreadable.read(one), { name: 'DATABASE_UNAVAILABLE', cause: { code: 'ENOENT' } })
})

/** A read that takes until it is told to let go. */
async function readBlocked (t: Test, database: Database, url: string) {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('select pg_advisory_lock(1)')
  const reading = database.read({ name: 'blocked', text: 'select pg_advisory_lock(1)' })
  return { reading, unblock: () => client.query('select pg_advisory_unlock(1)') }
}

t.test('a look-up does not wait for reads that take long', { buffered: true }, async (t) => {
  const { database, url } = await startApp(t)
  const { reading, unblock } = await readBlocked(t, database, url)
  t.strictSame(await database.readHedged(one), [['1']])
  await unblock()
  await reading
})

t.test('a look-up on a connection that has gone silent is made again on a new one', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  await database.readHedged(one)
  proxy.silence()
  t.strictSame(await database.readHedged(one), [['1']])
  await database.close()
})

t.test('a look-up that is answered late is answered, though it could not be made again', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  await database.readHedged(one)
  proxy.slow(700)
  proxy.set('closed')
  t.strictSame(await database.readHedged(one), [['1']])
  await database.close()
  await t.rejects(database.readHedged(one), { name: 'DATABASE_UNAVAILABLE', cause: { code: 'ECONNRESET' } })
})

t.test('with STATEMENT_TIMEOUT=0 the limit is the role\'s own', { buffered: true }, async (t) => {
  const { database } = await startApp(t, { STATEMENT_TIMEOUT: '0' })
  t.strictSame(await database.read({ name: 'longer', text: 'select pg_sleep(1.2) is null' }), [['f']])
  t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [['0']])
})

t.test('by default it is five seconds', { buffered: true }, async (t) => {
  const { database } = await startApp(t)
  t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [['5s']])
})

t.test('a connection is kept while there is nothing to do', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  await database.read(one)
  // There was more than one attempt if the first took long.
  while (proxy.connections().now > 1) await delay(10)
  proxy.forgetMost()
  await delay(1100)
  await Promise.all([database.read(one), database.read(one)])
  t.equal(proxy.connections().most, 1)
  await database.close()
})

t.test('however often its connection falls silent, a place gets another', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 60_000 })
  // More often than it may have connections open at a time.
  for (let round = 0; round < 5; round++) {
    await database.read(one)
    proxy.silence()
    const asked = []
    let answer
    while (answer === undefined) {
      asked.push(database.read(one).catch(() => 'lost'))
      answer = await Promise.race([...asked, delay(100)])
    }
    t.strictSame(answer, [['1']])
    proxy.cut()
    t.equal(await asked[0], 'lost')
  }
  await database.close()
})

t.test('after a connection has announced its end the next statement goes elsewhere', { buffered: true }, async (t) => {
  const url = await createDatabase(t)
  const database = openDatabase({ url, statementTimeoutMs: 2000 })
  await database.read(one)
  const answer = database.read(long).catch(() => database.read(one))
  await sql(url, "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'plant-store' and datname = current_database()")
  t.strictSame(await answer, [['1']])
  await database.close()
})

t.test('while one attempt to connect hangs others are made, and one that is refused ends nothing', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  proxy.set('silent')
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 1000 })
  const rows = database.read(one)
  while (proxy.connections().now === 0) await delay(10)
  proxy.set('closed')
  await delay(700)
  proxy.set('open')
  t.strictSame(await rows, [['1']])
  await database.close()
})

t.test('statements that wait for a connection count as pending', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  proxy.set('silent')
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 1000 })
  const waiting = Promise.all([1, 2, 3].map(() => database.read(one)))
  t.equal(database.pending().read, 3)
  proxy.set('open')
  t.strictSame(await waiting, Array(3).fill([['1']]))
  await database.close()
})

t.test('at its end a connection that is only being made is waited for', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const early = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  const asked = early.read(one)
  await early.close()
  t.strictSame(await asked, [['1']])
  while (proxy.connections().now > 0) await delay(10)
})

t.test('readiness does not wait for reads that take long', { buffered: true }, async (t) => {
  const { database, url } = await startApp(t)
  const { reading, unblock } = await readBlocked(t, database, url)
  await database.probe()
  await unblock()
  await reading
})

t.test('it is not ready while lists would have no connection, though others answer', { buffered: true }, async (t) => {
  const url = await createDatabase(t)
  const proxy = await openProxy(t, url)
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  await database.probe()
  await database.read(one)
  proxy.set('closed')
  await sql(url, "select pg_terminate_backend(pid) from pg_stat_activity where query = 'select 1' and datname = current_database()")
  while (await database.read(one).then(() => true, () => false)) await delay(10)
  t.strictSame(await database.write({ name: 'two', text: 'select 2' }), [['2']])
  await t.rejects(database.probe(), { code: 'ECONNRESET' })
  proxy.set('open')
  while (!await database.probe().then(() => true, () => false)) await delay(10)
  await database.close()
})

t.test('an event loop that lags is told from a database that is silent', { buffered: true }, async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })
  const troubles = new EventEmitter()
  database.onWarning((what, details) => { troubles.emit(what.includes('event loop') ? 'lag' : 'silence', details) })
  await database.read(one)
  // There was more than one attempt if the first took long.
  while (proxy.connections().now > 1) await delay(10)
  proxy.forgetMost()
  const answer = database.read(one)
  const lagged = once(troubles, 'lag')
  // The event loop stands still, and no processor is taken from others.
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1500)
  t.match(await lagged, [{ lagMs: Number }])
  t.strictSame(await answer, [['1']])
  t.equal(proxy.connections().most, 1)

  proxy.silence()
  const lost = database.read(one).catch(({ name }) => name)
  t.strictSame(await once(troubles, 'silence'), [{ replaced: 1 }])
  t.equal(await lost, 'DATABASE_SLOW')
  await database.close()
})

t.test('what the server says of its state is told from what it says of the statement', { buffered: true }, async (t) => {
  const { database } = await startApp(t)
  const states: Array<[state: string, isUnavailable: boolean, wasRolledBack: boolean]> = [
    ['08006', true, false], ['25006', true, false], ['28000', true, false], ['3D000', true, false], ['53100', true, false], ['53300', true, false],
    ['57P05', true, false], ['58030', true, false], ['26000', true, false], ['42P05', true, false], ['42P01', true, false],
    ['40001', true, true], ['40P01', true, true], ['57014', true, true], ['42703', false, true], ['23514', false, true]
  ]
  for (const [state, isUnavailable, isTurnedDown] of states) {
    const error = await database.write({ name: state, text: `do $$ begin raise exception using errcode = '${state}'; end $$` }).then(() => {}, (error) => error)
    t.strictSame([error instanceof ApiError, wasRolledBack(error)], [isUnavailable, isTurnedDown], state)
  }
})
