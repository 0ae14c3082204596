import t from 'tap'
import openapi from '../../../openapi.json' with { type: 'json' }
import { createDatabase } from '../../support/database.ts'
import { fuzz } from './run.ts'

const count = 300

t.test('every response to random requests is the one that the oracle expects', async (t) => {
  const seed = Date.now() % 1_000_000
  const { violations, validRequests, outcomes } = await fuzz(t, await createDatabase(t), seed, count)
  t.same(violations, [], `npm run fuzz -- --seed ${seed} --count ${count}`)
  t.equal(validRequests, count)
  for (const { operationId, tags } of Object.values(openapi.paths).flatMap(Object.values)) {
    // For the operation `createPlant`, the kind of cases is `creates`.
    const kind = operationId.replace(/Plants?$/, 's')
    t.ok(!tags.includes('Plants') || kind in outcomes, kind)
  }
})
