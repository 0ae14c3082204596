import { setTimeout as delay, setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { WorkQueue, type Queued, type Work } from '../../src/scheduling/work-queue.ts'

// Some tests wait for timeouts of the queue. Run the tests in parallel to save time.
t.jobs = 4
const test = (title: string, run: (t: Test) => Promise<void>) => t.test(title, { buffered: true }, run)

interface Item extends Work { name: string }
type Entry = Queued<Item>

const namesOf = (group: Entry[]) => group.map(({ item }) => item.name).join(' ')

/** Starts a queue. A group of items stays in flight until the test finishes the group. */
function startQueue (t: Test, { maxItems = 1, maxInFlight = 1, maxQueued = 1000 } = {}) {
  const inFlight: Array<{ names: string, finish: () => void }> = []
  const rejected: string[] = []
  const queue = new WorkQueue<Entry>((group) => new Promise((resolve) => {
    inFlight.push({ names: namesOf(group), finish: resolve })
  }), { limits: () => ({ maxItems, maxInFlight }), maxQueued })
  t.teardown(() => { for (const { finish } of inFlight) finish() })
  return {
    inFlight,
    rejected,

    /** Adds an item for each word of `names`. The first letter of a name is the item's user. */
    add (names: string, work: Partial<Item> = {}): void {
      for (const name of names.split(' ')) {
        const item = { user: name.charAt(0), name, ...work }
        queue.add({ item, reject: (error) => { rejected.push(`${name}: ${(error as Error).name}`) } })
      }
    },

    /** Waits until a group is in flight. Then finishes the oldest group and returns its names. */
    async finishNext (): Promise<string> {
      while (inFlight.length === 0) await nextTick()
      const [{ names, finish }] = inFlight.splice(0, 1) as [typeof inFlight[0]]
      finish()
      return names
    }
  }
}

test('a group has entries of each user', async (t) => {
  const { add, finishNext } = startQueue(t, { maxItems: 3 })
  add('m1 m2 m3 m4 a1 b1')
  t.strictSame([await finishNext(), await finishNext()], ['m1 a1 b1', 'm2 m3 m4'])
})

test('at most maxInFlight groups are in flight', async (t) => {
  const { add, inFlight, finishNext } = startQueue(t, { maxInFlight: 2 })
  add('m1 m2 m3 a1')
  for (let tick = 0; tick < 3; tick++) await nextTick()
  t.strictSame(inFlight.map(({ names }) => names), ['m1', 'a1'])
  for (const names of ['m1', 'a1', 'm2', 'm3']) t.equal(await finishNext(), names)
})

test('a group has a bounded size, and a larger item is alone in its group', async (t) => {
  const { add, finishNext } = startQueue(t, { maxItems: 10 })
  add('m1 m2 m3', { size: 131_072 })
  add('n1', { size: 1_000_000 })
  add('a1 a2')
  const groups = [await finishNext(), await finishNext(), await finishNext()]
  t.equal(groups[0], 'a1 a2 m1')
  t.strictSame(groups.slice(1), ['m2', 'm3'])
})

test('when no group finishes for a second, more groups start', async (t) => {
  const { add, inFlight, finishNext } = startQueue(t, { maxInFlight: 2 })
  add('m1 m2 m3 m4 m5 m6')
  for (const names of ['m1', 'm2', 'm3']) {
    await delay(500)
    t.equal(inFlight.length, 2)
    t.equal(await finishNext(), names)
  }
  while (inFlight.length < 3) await delay(50)
  t.strictSame(inFlight.map(({ names }) => names), ['m4', 'm5', 'm6'])
})

test('a group that finishes after it stalled starts no further group', async (t) => {
  const { add, inFlight, finishNext } = startQueue(t)
  add('m1 m2 m3')
  while (inFlight.length < 2) await delay(50)
  t.equal(await finishNext(), 'm1')
  for (let tick = 0; tick < 3; tick++) await nextTick()
  t.strictSame(inFlight.map(({ names }) => names), ['m2'])
})

test('a full queue rejects an entry of the user who has the most', async (t) => {
  const { add, rejected, finishNext } = startQueue(t, { maxQueued: 3 })
  add('m1')
  t.equal(await finishNext(), 'm1')
  add('m2 m3 m4 m5 a1')
  t.strictSame(rejected, ['m5: OVERLOADED', 'm4: OVERLOADED'])
  for (const names of ['m2', 'a1', 'm3']) t.equal(await finishNext(), names)
})

test('an entry that waits for five seconds is rejected and never starts', async (t) => {
  const { add, inFlight, rejected } = startQueue(t)
  add('a1')
  add('m1', { queuedAt: performance.now() - 4500 })
  add('m2', { queuedAt: Infinity })
  while (rejected.length === 0) await delay(50)
  t.strictSame(rejected, ['m1: OVERLOADED'])
  while (inFlight.length < 2) await delay(50)
  t.strictSame(inFlight.map(({ names }) => names), ['a1', 'm2'])
})

test('work for a closed response is rejected and takes no place in a group', async (t) => {
  const { add, rejected, finishNext } = startQueue(t, { maxItems: 2 })
  add('m1 n1', { response: { destroyed: true } })
  add('a1 b1', { response: { destroyed: false } })
  t.equal(await finishNext(), 'a1 b1')
  t.strictSame(rejected, ['m1: HTTP_MALFORMED', 'n1: HTTP_MALFORMED'])
})
