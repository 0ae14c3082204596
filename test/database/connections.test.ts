import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { openDatabase } from '../../src/database/database.ts'
import { openProxy } from '../faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { createDatabase } from '../support/database.ts'

const one = { name: 'one', text: 'select 1' }

t.test('after a refused connection the requests that follow are answered without trying again', async (t) => {
  const refusing = createServer((socket) => { socket.destroy() }).listen(0, '127.0.0.1')
  await once(refusing, 'listening')
  t.teardown(() => refusing.close())
  let attempts = 0
  refusing.on('connection', () => { attempts++ })
  const { port } = refusing.address() as AddressInfo
  const database = openDatabase({ url: `postgres://127.0.0.1:${port}/plants`, statementTimeoutMs: 1000, maxWaiting: 100 })
  for (let asked = 0; asked < 200; asked++) await t.rejects(database.read(one), { name: 'DATABASE_UNAVAILABLE' })
  t.ok(attempts < 200, `${attempts} attempts`)
  await database.close()
})

t.test('a connection that has gone silent is replaced, and what it has no longer counts as waiting', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000, maxWaiting: 3 })
  await database.read(one)
  proxy.silence()
  const lost = Promise.allSettled(Array.from({ length: 3 }, () => database.read(one)))
  await t.rejects(database.read(one), { name: 'OVERLOADED' })
  const unlessOverloaded = (error: Error) => error.name === 'OVERLOADED' ? delay(50) : Promise.reject(error)
  let rows
  while (rows === undefined) rows = await database.read(one).catch(unlessOverloaded)
  t.strictSame(rows, [['1']])
  t.equal(await Promise.race([lost, 'still waiting']), 'still waiting')
  t.match(await lost, Array(3).fill({ status: 'rejected', reason: { name: 'DATABASE_UNAVAILABLE' } }))
  await database.close()
})

t.test('a look-up does not wait for reads that take long', async (t) => {
  const { database } = await startApp(t)
  const long = database.read({ name: 'long', text: 'select pg_sleep(1)' })
  t.equal(await Promise.race([long, database.lookUp(one).then(() => 'looked up')]), 'looked up')
  await long
})

t.test('a look-up on a connection that has gone silent is made again on a new one', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000, maxWaiting: 3 })
  await database.lookUp(one)
  proxy.silence()
  t.strictSame(await database.lookUp(one), [['1']])
  await database.close()
})

t.test('with STATEMENT_TIMEOUT=0 the limit is the role\'s own', async (t) => {
  const { database } = await startApp(t, { STATEMENT_TIMEOUT: '0' })
  t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [['0']])
})

t.test('by default it is five seconds', async (t) => {
  const { database } = await startApp(t)
  t.strictSame(await database.read({ name: 'limit', text: 'show statement_timeout' }), [['5s']])
})
