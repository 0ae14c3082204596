import { PassThrough } from 'node:stream'
import { setTimeout as delay, setImmediate as nextTurn } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { Batcher } from '../../src/scheduling/batcher.ts'

// Some wait for what is bounded by time.
t.jobs = 4

const range = (length: number) => Array.from({ length }, (_, index) => index)

interface Item { owner: string, size: number }

/** Batches that end when they are told to. */
function startBatches (t: Test, maxItems: number, maxQueued = 1000, maxInFlight = 1) {
  const begun: Array<{ items: Item[], end: () => void }> = []
  const batch = new Batcher((items: Item[]) => new Promise<Item[]>((resolve) => {
    begun.push({ items, end: () => resolve(items) })
  }), ({ size }) => size, { name: 'test', maxItems, maxInFlight, maxQueued, isRetryable: () => false })
  t.teardown(() => { for (const { end } of begun) end() })
  return {
    begun,
    add: (owner: string, size = 0) => batch.add({ owner, size }),

    /** Whose items the batch has that is the next to begin; ends it. */
    async pass (): Promise<string> {
      while (begun.length === 0) await nextTurn()
      const [{ items, end }] = begun.splice(0, 1) as [typeof begun[0]]
      end()
      return items.map(({ owner, size }) => owner + size).join(' ')
    }
  }
}

t.test('a batch has something of everybody who waits', { buffered: true }, async (t) => {
  const { pass, add } = startBatches(t, 3)
  const all = ['m', 'm', 'm', 'm', 'a', 'b'].map((owner) => add(owner))
  t.equal(await pass(), 'm0 a0 b0')
  t.equal(await pass(), 'm0 m0 m0')
  t.equal((await Promise.all(all)).length, 6)
})

t.test('an item that is run on its own waits for a hundred of another owner, not for all', { buffered: true }, async (t) => {
  const { begun, pass, add } = startBatches(t, 1)
  const all = range(150).map(() => add('m'))
  while (begun.length < 100) await nextTurn()
  all.push(add('a'))
  await nextTurn()
  t.equal(begun.length, 100)
  t.equal(await pass(), 'm0')
  t.equal(await pass(), 'm0')
  while (begun.length < 100) await nextTurn()
  t.strictSame(begun.slice(98).map(({ items }) => items[0]?.owner).sort(), ['a', 'm'])
  for (let passed = 2; passed < 151; passed++) await pass()
  t.equal((await Promise.all(all)).length, 151)
})

t.test('a batch that hangs lets the next one pass, but not while others are answered', { buffered: true }, async (t) => {
  const { begun, add } = startBatches(t, 2, 1000, 2)
  const all = range(16).map(() => add('m'))
  for (let answered = 0; answered < 4; answered++) {
    while (begun.length < 2) await nextTurn()
    await delay(500)
    t.equal(begun.length, 2)
    begun.pop()?.end()
  }
  while (begun.length < 4) await delay(50)
  for (const { end } of begun) end()
  await Promise.all(all)
})

t.test('the end of a batch that was passed keeps nobody waiting', { buffered: true }, async (t) => {
  const { begun, add } = startBatches(t, 2, 1000, 5)
  const all = range(22).map(() => add('m'))
  while (begun.length < 10) await delay(50)
  const passed = begun.splice(0, 5)
  while (passed.length > 0 && begun.length === 5) {
    await delay(800)
    passed.pop()?.end()
  }
  t.ok(passed.length > 0, 'the next ones begin while some are left to end')
  for (const { end } of [...passed, ...begun]) end()
  await Promise.all(all)
})

t.test('no small item waits for a large one', { buffered: true }, async (t) => {
  const { begun, pass, add } = startBatches(t, 3)
  const large = [1, 2].map(() => add('m', 1_000_000))
  for (const size of [100, 200]) {
    const small = add('a', size)
    while (begun.length < 2) await nextTurn()
    t.strictSame(begun.map(({ items }) => items), [[{ owner: 'm', size: 1_000_000 }], [{ owner: 'a', size }]])
    for (const { end } of begun.splice(1)) end()
    await small
  }
  t.equal(await pass(), 'm1000000')
  t.equal(await pass(), 'm1000000')
  await Promise.all(large)
})

t.test('a large item counts as many that wait, and is taken though it is more than may', { buffered: true }, async (t) => {
  const { pass, add } = startBatches(t, 3, 10)
  const addLarge = (size: number) => add('m', 1_000_000 + size).catch(({ name }) => name)
  const first = addLarge(1)
  await nextTurn()
  const large = [first, ...[2, 3, 4].map(addLarge)]
  t.strictSame(await Promise.all(large.slice(2)), ['OVERLOADED', 'OVERLOADED'])
  const other = add('a', 500_000)
  t.strictSame(await large[1], 'OVERLOADED')
  t.equal(await pass(), 'm1000001')
  t.equal(await pass(), 'a500000')
  await Promise.all([large[0], other])
})

t.test('what has waited too long for its batch is refused, and in none', { buffered: true }, async (t) => {
  const { begun, add } = startBatches(t, 2)
  const items = range(20).map((size) => add('m', size).catch(({ name }) => name))
  t.equal(await items.at(-1), 'OVERLOADED')
  t.strictSame(begun.flatMap(({ items }) => items.map(({ size }) => size)), range(begun.length * 2))
})

t.test('a batch leaves out who may not go, until they may, and whose caller has gone', async (t) => {
  const held = new Set(['m'])
  const run = async (items: Array<{ owner: string }>) => items.map(({ owner }) => owner)
  const batch = new Batcher(run, () => 0, {
    name: 'test',
    maxItems: 10,
    maxInFlight: 1,
    maxQueued: 10,
    isRetryable: () => false,
    canRun: (owner) => !held.has(owner)
  })
  const answer = new PassThrough()
  const [waiting, gone] = [batch.add({ owner: 'm' }), batch.add({ owner: 'm', answer } as { owner: string })]
  t.equal(await batch.add({ owner: 'a' }), 'a')
  // Nothing is under way any more: from here on it looks again.
  for (let turn = 0; turn < 3; turn++) await nextTurn()
  answer.destroy()
  held.clear()
  t.equal(await waiting, 'm')
  await t.rejects(gone, { cause: 'its caller has gone' })
})

t.test('who has gone takes nobody\'s place in a batch', async (t) => {
  const groups: string[][] = []
  const batch = new Batcher(async (items: Array<{ owner: string, answer?: PassThrough }>) => {
    groups.push(items.map(({ owner }) => owner))
    return groups
  }, () => 0, { name: 'test', maxItems: 2, maxInFlight: 1, maxQueued: 10, isRetryable: () => false })
  const answer = new PassThrough().destroy()
  const gone = ['m', 'n', 'o'].map((owner) => t.rejects(batch.add({ owner, answer }), { cause: 'its caller has gone' }))
  await Promise.all([...gone, ...['a', 'b', 'c'].map((owner) => batch.add({ owner }))])
  t.strictSame(groups, [['a', 'b'], ['c']])
})
