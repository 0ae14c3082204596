// Tests the order of queued work. batcher-orders.test.ts tests the batcher in random orders of events.
import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { Batcher, type Work } from '../../src/scheduling/batcher.ts'
import { FairQueue } from '../../src/scheduling/fair-queue.ts'
import { TickLimiter } from '../../src/scheduling/tick-limiter.ts'

function drain (queue: FairQueue<string>): string[] {
  const items: string[] = []
  for (let item; (item = queue.next()) !== undefined;) items.push(item)
  return items
}

/** The first letter of an item is its user. */
function queueOf (items: string[]): FairQueue<string> {
  const queue = new FairQueue<string>()
  for (const item of items) queue.add(item.charAt(0), item)
  return queue
}

t.test('users take turns, however many entries one of them has', async (t) => {
  const queue = queueOf(['m1', 'm2', 'm3', 'm4', 'a1', 'b1', 'a2'])
  t.equal(queue.size, 7)
  t.strictSame(drain(queue), ['m1', 'a1', 'b1', 'm2', 'a2', 'm3', 'm4'])
  t.equal(queue.size, 0)
})

t.test('a user with expensive entries gets the same cost in a round as the others', async (t) => {
  const queue = new FairQueue<string>(10)
  for (const item of ['m1', 'm2']) queue.add('m', item, 20)
  for (const item of ['a1', 'a2', 'a3', 'a4', 'a5', 'a6']) queue.add('a', item, 5)
  t.strictSame(drain(queue), ['a1', 'a2', 'm1', 'a3', 'a4', 'a5', 'a6', 'm2'])
})

t.test('the user with the most entries loses the newest one to a user who has fewer', async (t) => {
  const queue = queueOf(['m1', 'm2', 'm3', 'a1'])
  const evicted = ['m', 'a', 'a', 'b', 'b'].map((user) => queue.evictFromLargest(user))
  t.strictSame(evicted, [undefined, 'm3', undefined, 'm2', undefined])
  t.equal(queue.size, 2)
})

t.test('entries that were queued before a time expire, except those queued at Infinity', async (t) => {
  const queue = new FairQueue<string>()
  const entries = [['m', 'new', 20], ['m', 'old', 10], ['a', 'old, too', 5], ['a', 'next', Infinity]] as const
  for (const [user, item, queuedAt] of entries) queue.add(user, item, 1, queuedAt)
  t.strictSame(queue.takeExpired(15), ['old', 'old, too'])
  t.strictSame(drain(queue), ['new', 'next'])
})

const KiB = 1024
const work: Record<string, [work: Array<[name: string, KiB: number]>, ticks: string[][]]> = {
  'work beyond the budget of a tick waits for the next tick, and its keys take turns': [
    [['m1', 64], ['m2', 64], ['m3', 128], ['m4', 64], ['m5', 64], ['a1', 64]],
    [['m1', 'm2'], ['a1'], ['m3'], ['m4', 'm5']]
  ],
  'work larger than the budget gets a tick of its own': [
    [['large 1', 2048], ['large 2', 2048], ['small', 1]], [['large 1'], ['small'], ['large 2']]
  ]
}
for (const [title, [entries, ticks]] of Object.entries(work)) {
  t.test(title, async (t) => {
    const limiter = new TickLimiter()
    let done: string[] = []
    const run = (name: string, size: number) =>
      limiter.run(name.charAt(0), size * KiB, () => { done.push(name) })
    for (const [name, size] of entries) run(name, size)
    for (const expected of ticks) {
      t.strictSame(done, expected)
      done = []
      await nextTick()
    }
    await nextTick()
    run('late', 128)
    t.strictSame(done, ['late'], 'after an idle tick the whole budget is available')
  })
}

t.test('users share batches of a bounded size, and each item gets its result', async (t) => {
  const batches: string[] = []
  const batcher = new Batcher<Work & { name: string }, string>(async (items) => {
    const names = items.map(({ name }) => name)
    batches.push(names.join(' '))
    return names
  }, {
    name: 'test',
    limits: () => ({ maxItems: 4, maxInFlight: 1 }),
    maxQueued: 100,
    isRetryable: () => false
  })
  const sizes = { m1: 131_072, m2: 131_072, n1: 1_000_000, a1: 0, a2: 0, a3: 0, a4: 0, b1: 0 }
  const results = Object.entries(sizes).map(([name, size]) =>
    batcher.add({ user: name.charAt(0), identity: undefined, name, size }))
  t.strictSame(await Promise.all(results), Object.keys(sizes))
  t.strictSame(batches, ['a1 b1 a2 a3', 'a4 m1', 'm2', 'n1'])
})

/** Batches a1 and b1. When both fail together, each is sent again alone, a1 after the check of its token. */
async function retryAfterCheck (t: Test, response: { destroyed: boolean }) {
  const sent: string[] = []
  const checked = Promise.withResolvers<void>()
  let validUntil = Infinity
  const identity = { user: 'a', get validUntil () { return validUntil }, renew: () => checked.promise }
  const batcher = new Batcher<Work & { name: string }, string>(async (items) => {
    sent.push(items.map(({ name }) => name).join(' '))
    if (items.length === 1) return items.map(({ name }) => name)
    // The token expires while the batch is in flight.
    validUntil = 0
    throw new Error('one item is at fault')
  }, { name: 'test', limits: () => ({ maxItems: 2, maxInFlight: 1 }), maxQueued: 9, isRetryable: () => true })
  const retried = batcher.add({ user: 'a', name: 'a1', identity, response })
  t.equal(await batcher.add({ user: 'b', name: 'b1', identity: undefined }), 'b1')
  return {
    retried,
    sent,
    check () {
      validUntil = Infinity
      checked.resolve()
    }
  }
}

t.test('a retry is sent after the check of its token', async (t) => {
  const { retried, sent, check } = await retryAfterCheck(t, { destroyed: false })
  check()
  t.equal(await retried, 'a1')
  t.strictSame(sent, ['a1 b1', 'b1', 'a1'])
})

t.test('a retry is not sent if its response closes during the check of its token', async (t) => {
  const response = { destroyed: false }
  const { retried, sent, check } = await retryAfterCheck(t, response)
  response.destroyed = true
  check()
  await t.rejects(retried, { name: 'HTTP_MALFORMED' })
  t.strictSame(sent, ['a1 b1', 'b1'])
})

t.test('after the check of its token, an item runs unless it has waited too long', async (t) => {
  const identity = { user: 'a', validUntil: 0, async renew () { this.validUntil = Infinity } }
  const batcher = new Batcher<Work, string>(async () => ['sent'],
    { name: 'test', limits: () => ({ maxItems: 2, maxInFlight: 1 }), maxQueued: 9, isRetryable: () => true })
  t.equal(await batcher.add({ user: 'a', identity: { ...identity } }), 'sent')
  const queuedAt = performance.now() - 5001
  await t.rejects(batcher.add({ user: 'a', identity, queuedAt }), { name: 'OVERLOADED' })
})
