// Tests queues, memory budget, garbage collection and token buckets. batcher-orders.test.ts tests the batcher
// in random orders of events.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Socket } from 'node:net'
import { PassThrough } from 'node:stream'
import { setImmediate as nextTick } from 'node:timers/promises'
import fc from 'fast-check'
import Fastify from 'fastify'
import t from 'tap'
import { manageConnections } from '../../src/http/wire/connections.ts'
import { Batcher, singles, type Work } from '../../src/scheduling/batcher.ts'
import { FairQueue } from '../../src/scheduling/fair-queue.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { TickLimiter } from '../../src/scheduling/tick-limiter.ts'
import { createTokenBuckets } from '../../src/scheduling/token-buckets.ts'
import { stopClock } from '../support/orders.ts'

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

t.test('without batching, items share no statement and do not wait for each other', async (t) => {
  const sent: number[] = []
  const batcher = new Batcher<Work, undefined>((items) => {
    sent.push(items.length)
    return new Promise(() => {})
  }, { name: 'test', limits: () => singles, maxQueued: 10, isRetryable: () => false })
  for (const user of ['a', 'a', 'b']) batcher.add({ user, identity: undefined })
  await nextTick()
  t.strictSame(sent, [1, 1, 1])
})

t.test('a retry is sent after the check of its token, unless its response has closed', async (t) => {
  for (const isClosed of [false, true]) {
    const sent: string[] = []
    const checked = Promise.withResolvers<void>()
    let validUntil = Infinity
    const identity = { user: 'a', get validUntil () { return validUntil }, renew: () => checked.promise }
    const response = { destroyed: false }
    const batcher = new Batcher<Work & { name: string }, string>(async (items) => {
      const names = items.map(({ name }) => name)
      sent.push(names.join(' '))
      if (names.length === 1) return names
      // The token expires while the batch is in flight.
      validUntil = 0
      throw new Error('one item is at fault')
    }, {
      name: 'test',
      limits: () => ({ maxItems: 2, maxInFlight: 1 }),
      maxQueued: 9,
      isRetryable: () => true
    })
    const retried = batcher.add({ user: 'a', name: 'a1', identity, response })
    t.equal(await batcher.add({ user: 'b', name: 'b1', identity: undefined }), 'b1')
    response.destroyed = isClosed
    validUntil = Infinity
    checked.resolve()
    if (isClosed) await t.rejects(retried, { name: 'HTTP_MALFORMED' })
    else t.equal(await retried, 'a1')
    t.strictSame(sent, isClosed ? ['a1 b1', 'b1'] : ['a1 b1', 'b1', 'a1'])
  }
})

const open = () => new PassThrough()

t.test('one user gets at most half of the budget, and the next users half of the rest', async (t) => {
  const budget = new MemoryBudget(120)
  const reservations = [
    ['mallory', 61, false], ['mallory', 60, true], ['mallory', 1, false],
    ['alice', 30, true], ['alice', 1, false], ['bo', 15, true]
  ] as const
  for (const [user, bytes, fits] of reservations) t.equal(budget.reserve(user, bytes, open()), fits)
})

t.test('memory is released when the response ends or is cut', async (t) => {
  const budget = new MemoryBudget(100)
  const reserve = (bytes: number, response = open()) => budget.reserve('mallory', bytes, response)
  const [ended, cut] = [open(), open()]
  t.ok(reserve(25, ended))
  t.ok(reserve(25, cut))
  ended.end().resume()
  await once(ended, 'close')
  t.ok(reserve(25))
  cut.destroy()
  await once(cut, 'close')
  t.ok(reserve(25))
  t.notOk(reserve(1))
})

t.test('the heap is collected five seconds after a burst of large bodies or 1,000 connections', async (t) => {
  const advance = stopClock(t)
  const { gc } = globalThis
  t.teardown(() => { globalThis.gc = gc })
  const collections: unknown[] = []
  globalThis.gc = ((options: unknown) => { collections.push(options) }) as typeof gc
  const budget = new MemoryBudget(134_217_728)
  async function burst (bytes: number): Promise<void> {
    const response = open()
    budget.reserve('mallory', bytes, response)
    response.destroy()
    await once(response, 'close')
    advance(4999)
  }
  await burst(16_777_216)
  advance(1)
  for (const bytes of [16_777_217, 16_777_217]) await burst(bytes)
  t.strictSame(collections, [])
  advance(1)
  t.strictSame(collections, [{ execution: 'async', flavor: 'last-resort' }])
  await burst(1024)
  advance(1)
  t.equal(collections.length, 1)

  const app = Fastify()
  manageConnections(app, { stopping: false }, 1001)
  const sockets = Array.from({ length: 1001 }, () => new Socket())
  for (const socket of sockets) app.server.emit('connection', socket)
  for (const [closed, total] of [[999, 1], [1, 2], [1, 2]] as const) {
    for (const socket of sockets.splice(0, closed)) {
      socket.destroy()
      await once(socket, 'close')
    }
    advance(5000)
    t.equal(collections.length, total)
  }
})

t.test('every sequence of requests and reads gets what buckets of whole tokens would give', async (t) => {
  const advance = stopClock(t)
  const quarters = fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.integer({ min: 1, max: 8 }))
  const step = fc.tuple(fc.constantFrom('a', 'b'), fc.constantFrom(1, 1, 0), quarters)
  const steps = fc.array(step, { minLength: 50, maxLength: 100 })
  fc.assert(fc.property(fc.integer({ min: 1, max: 5 }), steps, (burst, steps) => {
    // A bucket gets a token every 2 s.
    const take = createTokenBuckets({ count: 4, seconds: 8 }, burst)
    const model: Record<string, number> = { a: burst, b: burst }
    for (const [key, count, quarters] of steps) {
      // Floating-point sums of quarters are exact.
      advance(quarters * 500)
      for (const name in model) model[name] = Math.min((model[name] as number) + quarters / 4, burst)
      const tokens = model[key] as number
      const allowed = tokens >= 1
      const rest = model[key] = allowed ? tokens - count : tokens
      const left = Math.floor(rest)
      const refillSeconds = Math.ceil((left + 1 - rest) * 2)
      assert.deepEqual(take(key, count), { allowed, left, refillSeconds })
    }
  }), { numRuns: 50 })
})

t.test('the 50,000 keys that were used last keep their buckets', async (t) => {
  stopClock(t)
  const take = createTokenBuckets({ count: 1, seconds: 60 }, 1)
  take('busy')
  for (let key = 1; key < 50_000; key++) take(`key ${key}`)
  for (let key = 1; key <= 50_000; key++) take(`read ${key}`, 0)
  t.notOk(take('busy').allowed, 'a read creates no bucket, and a rejected request keeps its bucket')
  take('last')
  t.ok(take('key 1', 0).allowed, 'the least recently used key starts anew')
  for (const key of ['key 2', 'busy', 'last']) t.notOk(take(key).allowed, key)
})
