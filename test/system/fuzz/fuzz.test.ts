import t from 'tap'
import { NewPlantSchema } from '../../../src/plants/schemas.ts'
import { createDatabase } from '../../support/database.ts'
import { createRandom } from '../faults/random.ts'
import { plantText } from './requests.ts'
import { fuzz } from './run.ts'

const count = 300

t.test('every response to random requests is the one that the oracle expects', async (t) => {
  const seed = Date.now() % 1_000_000
  const { violations, validRequests } = await fuzz(t, await createDatabase(t), seed, count)
  t.same(violations, [], `npm run fuzz -- --seed ${seed} --count ${count}`)
  t.equal(validRequests, count)
})

t.test('the random plants have every field', async (t) => {
  const random = createRandom(1)
  const texts = Array.from({ length: 100 }, () => plantText(random)).join()
  for (const field of Object.keys(NewPlantSchema.properties)) t.ok(texts.includes(`"${field}":`), field)
})
