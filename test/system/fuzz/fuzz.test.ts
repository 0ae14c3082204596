import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { fuzz } from './run.ts'

// The number of fuzz cases in this test. `npm run fuzz` runs 20,000 cases by default.
const count = 300

t.test('every response to random requests is the one that the oracle expects', async (t) => {
  const seed = Date.now() % 1_000_000
  const { violations, validRequests } = await fuzz(t, { databaseUrl: await createDatabase(t), seed, count })
  t.same(violations, [], `npm run fuzz -- --seed ${seed} --count ${count}`)
  t.equal(validRequests, count)
})
