import t from 'tap'
import { createRandom } from './random.ts'
import { findUnexplained, type Operation } from './linearizable.ts'

const create = (from: number, until: number, name: string, done?: boolean): Operation =>
  ({ from, until, act: 'create', name, done })
const remove = (from: number, until: number, done?: boolean): Operation =>
  ({ from, until, act: 'delete', name: null, done })
const see = (from: number, until: number, name: string | null): Operation =>
  ({ from, until, act: 'see', name })

/** The last operation of each of these histories is impossible. */
const doctored: Record<string, Operation[]> = {
  'a lost create': [create(1, 2, 'a', true), see(3, 4, null)],
  'a stale list': [create(1, 2, 'a', true), remove(3, 4, true), see(5, 6, 'a')],
  'a list that goes back in time': [create(0, Infinity, 'a'), see(1, 2, 'a'), see(3, 4, null)],
  'one unknown delete that worked twice':
    [create(1, 2, 'a', true), remove(3, Infinity), create(4, 5, 'b', true), create(6, 7, 'c', true)],
  'one unknown create that worked twice': [create(1, Infinity, 'a'), remove(2, 3, true), remove(4, 5, true)],
  'a create acknowledged twice': [create(1, 4, 'a', true), create(2, 5, 'b', true)],
  'a rejected create that shows': [create(1, 2, 'a', true), create(3, 4, 'b', false), see(5, 6, 'b')],
  'an unknown create that replaced a plant':
    [create(1, 2, 'a', true), create(3, Infinity, 'b'), see(4, 5, 'b')],
  'a name that no create gave': [create(1, 2, 'a', true), see(3, 4, 'x')]
}
t.test('the checker finds the impossible operation', async (t) => {
  for (const [title, operations] of Object.entries(doctored)) {
    t.equal(findUnexplained(operations), operations.at(-1), title)
  }
})

const seeds = Array.from({ length: 200 }, (_, index) => index + 1)

/** Generates random operations. At least one order of these operations produces all their responses. */
function play (seed: number): Operation[] {
  const random = createRandom(seed)
  let name: string | null = null
  return Array.from({ length: 120 }, (_, step): Operation => {
    const [from, until] = [step - random.below(6), step + random.below(6)]
    const unknown = random.chance(0.25)
    if (random.chance(0.4)) return see(from, until, name)
    const isCreate = random.chance(0.5)
    const done = isCreate === (name === null)
    const wanted = `${step}`
    if (unknown && random.chance(0.5)) {
      return isCreate ? create(from, Infinity, wanted) : remove(from, Infinity)
    }
    if (done) name = isCreate ? wanted : null
    if (unknown) return isCreate ? create(from, Infinity, wanted) : remove(from, Infinity)
    return isCreate ? create(from, until, wanted, done) : remove(from, until, done)
  })
}

t.test('the checker explains possible histories with a quarter of the writes unknown', async (t) => {
  t.same(seeds.filter((seed) => findUnexplained(play(seed)) !== undefined), [])
})

t.test('the checker finds a plant that comes back at the end of a possible history', async (t) => {
  const last = see(200, 201, 'rejected')
  const wanting = [create(130, 131, 'rejected', false), remove(132, Infinity), last]
  t.same(seeds.filter((seed) => findUnexplained([...play(seed), ...wanting]) === undefined), [])
})
