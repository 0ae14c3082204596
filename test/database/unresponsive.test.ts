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

t.test('a database that takes connections but says nothing is told from one that is slow', async (t) => {
  const silent = createServer().listen(0, '127.0.0.1')
  await once(silent, 'listening')
  t.teardown(() => silent.close())
  const { port } = silent.address() as AddressInfo
  const { app, log } = await startApp(t, { DATABASE_URL: `postgres://127.0.0.1:${port}/plants` })

  const unavailable = { error: 50301, message: 'The database cannot be reached.' }
  const [list, ready] = await Promise.all([
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } }),
    app.inject('/readyz')
  ])
  t.strictSame([list.statusCode, list.json()], [503, unavailable])
  t.strictSame([ready.statusCode, ready.json()], [503, unavailable])
  const reasons = log.map((line) => JSON.parse(line)).filter(({ level, err }) => /warn|error/.test(level) && err).map(({ err }) => err)
  t.match(reasons, [{ message: 'no answer within 800 ms' }, { message: 'no connection within 3000 ms' }])
})

t.test('of a connection that ends it is told whose doing it was, once', async (t) => {
  const told: string[] = []
  const steps = new EventEmitter()
  const listen = ({ event }: { event: string }) => {
    told.push(event)
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
  const givenUp = once(steps, 'timed_out')
  const unanswered = database.read(one).catch(({ name }) => name)
  await givenUp
  proxy.cut()
  t.equal(await unanswered, 'DATABASE_UNAVAILABLE')
  await database.read(one)
  await database.close()
  t.strictSame(told, ['opened', 'lost', 'opened', 'timed_out', 'opened'])
})

t.test('a look-up that is lost, and asked again in vain, is told as unavailable', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 5000 })
  t.teardown(() => database.close())
  await database.readHedged(one)
  proxy.silence()
  proxy.set('closed')
  const noticed = new Promise((resolve) => database.onWarning(resolve))
  const answer = database.readHedged(one)
  answer.catch(() => {})
  await noticed
  proxy.cut()
  await t.rejects(answer, { name: 'DATABASE_UNAVAILABLE' })
})
