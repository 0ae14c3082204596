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

/** Generates operations, a quarter of them of unknown outcome. At least one order explains all responses. */
function play (seed: number): Operation[] {
  const random = createRandom(seed)
  let name: string | null = null
  return Array.from({ length: 120 }, (_, step): Operation => {
    const [from, end] = [step - random.below(6), step + random.below(6)]
    const isUnknown = random.chance(0.25)
    if (random.chance(0.4)) return see(from, end, name)
    const wanted = random.chance(0.5) ? `${step}` : null
    const changes = (wanted === null) !== (name === null)
    const isLost = isUnknown && random.chance(0.5)
    if (changes && !isLost) name = wanted
    const [until, done] = isUnknown ? [Infinity, undefined] : [end, changes]
    return wanted === null ? remove(from, until, done) : create(from, until, wanted, done)
  })
}

t.test('the checker explains possible histories, but no plant that comes back at their end', async (t) => {
  const last = see(200, 201, 'rejected')
  const wanting = [create(130, 131, 'rejected', false), remove(132, Infinity), last]
  for (let seed = 1; seed <= 200; seed++) {
    const history = play(seed)
    t.equal(findUnexplained(history), undefined, `seed ${seed}`)
    t.not(findUnexplained([...history, ...wanting]), undefined, `seed ${seed}`)
  }
})
