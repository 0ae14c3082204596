import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { fuzz } from './run.ts'

// Other ones in each run; `npm run fuzz` sends as many as one likes.
const count = 300

t.test('faulty requests find nothing', async (t) => {
  const seed = Date.now() % 1_000_000
  const { violations, goodRequests } = await fuzz(t, { databaseUrl: await createDatabase(t), seed, count })
  t.same(violations, [], `npm run fuzz -- --seed ${seed} --count ${count}`)
  t.equal(goodRequests, count)
})
