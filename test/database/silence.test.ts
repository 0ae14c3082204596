import { once } from 'node:events'
import { createServer, type AddressInfo } from 'node:net'
import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { startApp } from '../support/app.ts'

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
