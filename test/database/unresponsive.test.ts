import { EventEmitter, once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { openDatabase } from '../../src/database/database.ts'
import { connectionEvents } from '../../src/events.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { startApp } from '../support/app.ts'
import { createDatabase } from '../support/database.ts'

const one = { name: 'one', text: 'select 1' }

t.test('a database that accepts connections and does not respond counts as unavailable', async (t) => {
  const unresponsive = createServer().listen(0, '127.0.0.1')
  await once(unresponsive, 'listening')
  t.teardown(() => unresponsive.close())
  const { port } = unresponsive.address() as AddressInfo
  const { app, log } = await startApp(t, { DATABASE_URL: `postgres://127.0.0.1:${port}/plants` })

  const unavailable = { error: 50301, message: 'The database cannot be reached.' }
  const [list, ready] = await Promise.all([
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } }),
    app.inject('/readyz')
  ])
  t.strictSame([list.statusCode, list.json()], [503, unavailable])
  t.strictSame([ready.statusCode, ready.json()], [503, unavailable])
  const lines = log.map((line) => JSON.parse(line))
  const reasons = lines.filter(({ level, err }) => /warn|error/.test(level) && err).map(({ err }) => err)
  t.match(reasons, [{ message: 'no response within 800 ms' }, { message: 'no connection within 3000 ms' }])
})

t.test('one event tells why a connection ended: lost, or timed out', async (t) => {
  const events: string[] = []
  const steps = new EventEmitter()
  const listen = ({ event }: { event: string }) => {
    events.push(event)
    steps.emit(event)
  }
  connectionEvents.subscribe(listen)
  t.teardown(() => connectionEvents.unsubscribe(listen))
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 2000 })

  await database.read(one)
  const lost = once(steps, 'lost')
  proxy.cut()
  await lost
  await database.read(one)
  proxy.silence()
  const timedOut = once(steps, 'timed_out')
  const pending = database.read(one).catch(({ name }) => name)
  await timedOut
  proxy.cut()
  t.equal(await pending, 'DATABASE_UNAVAILABLE')
  await database.read(one)
  await database.close()
  t.strictSame(events, ['opened', 'lost', 'opened', 'timed_out', 'opened'])
})

t.test('a token look-up fails with DATABASE_UNAVAILABLE when its hedge fails too', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 5000 })
  t.teardown(() => database.close())
  await database.readHedged(one)
  proxy.silence()
  proxy.set('closed')
  const noticed = new Promise((resolve) => database.onWarning(resolve))
  const rows = database.readHedged(one)
  rows.catch(() => {})
  await noticed
  proxy.cut()
  await t.rejects(rows, { name: 'DATABASE_UNAVAILABLE' })
})
