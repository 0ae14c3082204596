import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { fuzz } from './run.ts'

const count = 300

t.test('every response to random requests is the one that the oracle expects', async (t) => {
  const seed = Date.now() % 1_000_000
  const { violations, validRequests } = await fuzz(t, await createDatabase(t), seed, count)
  t.same(violations, [], `npm run fuzz -- --seed ${seed} --count ${count}`)
  t.equal(validRequests, count)
})
