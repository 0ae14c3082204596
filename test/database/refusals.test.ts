import t from 'tap'
import { openDatabase } from '../../src/database/database.ts'
import { openProxy } from '../faults/proxy.ts'
import { createDatabase } from '../support/database.ts'

const one = { name: 'one', text: 'select 1' }

t.test('past maxWaiting a write is refused, and the one before it is carried out', async (t) => {
  const database = openDatabase({ url: await createDatabase(t), statementTimeoutMs: 5000, maxWaiting: 1 })
  t.teardown(() => database.close())
  const [first, second] = await Promise.allSettled([database.write(one), database.write(one)])
  t.match(first, { status: 'fulfilled', value: [['1']] })
  t.match(second, { status: 'rejected', reason: { name: 'OVERLOADED' } })
})

t.test('a look-up that is lost, and asked again in vain, is told as unavailable', async (t) => {
  const proxy = await openProxy(t, await createDatabase(t))
  const database = openDatabase({ url: proxy.url, statementTimeoutMs: 5000, maxWaiting: 10 })
  t.teardown(() => database.close())
  await database.lookUp(one)
  proxy.silence()
  proxy.set('closed')
  const noticed = new Promise((resolve) => database.onTrouble(resolve))
  const answer = database.lookUp(one)
  answer.catch(() => {})
  await noticed
  proxy.cut()
  await t.rejects(answer, { name: 'DATABASE_UNAVAILABLE' })
})
