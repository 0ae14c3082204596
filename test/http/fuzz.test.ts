import t from 'tap'
import { createDatabase } from '../support/database.ts'
import { fuzz } from './fuzz/run.ts'

t.test('faulty requests find nothing', async (t) => {
  const seed = Date.now() % 1_000_000
  const { violations, goodRequests } = await fuzz(t, { databaseUrl: await createDatabase(t), seed, count: 600 })
  t.same(violations, [], `npm run fuzz -- --seed ${seed} --count 600`)
  t.equal(goodRequests, 600)
})
