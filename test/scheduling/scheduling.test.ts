// Tests queues, memory budget, garbage collection and token buckets. batcher-orders.test.ts tests the batcher
// in random orders of events.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import { setImmediate as nextTick } from 'node:timers/promises'
import fc from 'fast-check'
import t from 'tap'
import { Batcher, type BatcherOptions, type Work } from '../../src/scheduling/batcher.ts'
import { FairQueue } from '../../src/scheduling/fair-queue.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { TickLimiter } from '../../src/scheduling/tick-limiter.ts'
import { createTokenBuckets } from '../../src/access/rate-limits.ts'
import { settlePromises, stopClock } from '../support/orders.ts'

t.test('users get the same cost in a round, and the largest user loses the newest entry', async (t) => {
  const queue = new FairQueue<string>()
  for (const item of ['m1', 'm2']) queue.add('m', item, 2)
  for (const item of ['a1', 'a2', 'a3', 'a4', 'a5', 'a6']) queue.add('a', item, 0.5)
  const items = Array.from({ length: 8 }, () => queue.next())
  t.strictSame(items, ['a1', 'a2', 'm1', 'a3', 'a4', 'a5', 'a6', 'm2'])
  for (const item of ['m1', 'm2', 'm3', 'a1']) queue.add(item.charAt(0), item)
  const evicted = ['m4', 'a2', 'a3', 'b1', 'b2'].map((item) => {
    queue.add(item.charAt(0), item)
    return queue.evictFromLargest(item.charAt(0))
  })
  t.strictSame(evicted, ['m4', 'm3', 'a3', 'm2', 'b2'])
})

t.test('work beyond the budget of a tick waits for the next tick, and its keys take turns', async (t) => {
  for (const [work, ...ticks] of [
    [{ m1: 32, m2: 32, m3: 128, m4: 64, m5: 64, a1: 64 }, ['m1', 'm2'], ['a1'], ['m3'], ['m4', 'm5']],
    // Work larger than the budget gets a tick of its own.
    [{ 'large 1': 2048, 'large 2': 2048, small: 1 }, ['large 1'], ['small'], ['large 2']]
  ] as Array<[work: Record<string, number>, ...ticks: string[][]]>) {
    const limiter = new TickLimiter()
    let done: string[] = []
    const run = (name: string, KiB: number) =>
      limiter.run(name.charAt(0), KiB * 1024, () => { done.push(name) })
    for (const [name, KiB] of Object.entries(work)) run(name, KiB)
    for (const expected of ticks) {
      t.strictSame(done, expected)
      done = []
      await nextTick()
    }
    await nextTick()
    run('late', 128)
    t.strictSame(done, ['late'], 'after an idle tick the whole budget is available')
  }
})

type Named = Work & { name: string }

const openBatcher = (
  run: (names: string[]) => Promise<string[]>, options: Partial<BatcherOptions<Named, string>> = {}
) => new Batcher<Named, string>((items) => run(items.map(({ name }) => name)),
  { name: 'test', maxItems: 1, maxInFlight: 1, maxQueued: 100, ...options })

t.test('users share batches of a bounded size, or each item gets a batch', async (t) => {
  const sizes = { m1: 131_072, m2: 131_072, n1: 1_000_000, a1: 0, a2: 0, a3: 0, a4: 0, b1: 0 }
  for (const [isOneByOne, atOnce, later] of [
    [false, ['a1 b1 a2 a3'], ['a4 m1', 'm2', 'n1']],
    [true, ['a1'], ['b1', 'a2', 'a3', 'a4', 'm1', 'm2', 'n1']]
  ] as const) {
    const batches: string[] = []
    const batcher = openBatcher(async (names) => {
      batches.push(names.join(' '))
      await nextTick()
      return names
    }, { maxItems: 4, isOneByOne: () => isOneByOne })
    const results = Object.entries(sizes).map(([name, size]) =>
      batcher.add({ user: name.charAt(0), identity: undefined, name, size }))
    await nextTick()
    t.strictSame(batches, atOnce)
    t.strictSame(await Promise.all(results), Object.keys(sizes), 'each item gets its result')
    t.strictSame(batches, [...atOnce, ...later])
  }
})

t.test('a slow batch holds back the next one for 0.2 s, and a user may not use all places', async (t) => {
  const advance = stopClock(t)
  const batches: string[] = []
  const run = (names: string[]) => {
    batches.push(names.join(' '))
    return new Promise<string[]>(() => {})
  }
  const add = (batcher: Batcher<Named, string>, ...names: string[]) => {
    for (const name of names) batcher.add({ user: name.charAt(0), identity: undefined, name }).catch(t.error)
  }
  const pass = async (ms: number) => {
    for (; ms >= 0; ms -= 100) {
      advance(Math.min(ms, 100))
      await settlePromises()
    }
  }
  const together = openBatcher(run, { maxItems: 3, maxInFlight: 3 })
  add(together, 'a1')
  await pass(0)
  add(together, 'a2', 'b1')
  await pass(200)
  t.strictSame(batches, ['a1'])
  await pass(100)
  t.strictSame(batches.splice(0), ['a1', 'a2 b1'])
  add(together, 'a3', 'a4', 'b2')
  await pass(0)
  t.strictSame(batches.splice(0), ['a3 b2 a4'], 'a full batch does not wait')
  add(together, 'a5', 'a6', 'a7')
  await pass(1000)
  t.strictSame(batches.splice(0), [], 'at most maxInFlight batches')

  const alone = openBatcher(run, { maxInFlight: 4, isOnePerUser: true })
  add(alone, 'a1', 'a2', 'b1')
  await pass(0)
  t.strictSame(batches.splice(0), ['a1', 'b1'])

  // While one batch hangs, the next ones follow each other without a pause.
  const quick = openBatcher((names) => names[0] === 'hangs' ? run(names) : Promise.resolve(names),
    { maxItems: 2, maxInFlight: 2 })
  add(quick, 'hangs')
  await pass(300)
  const done: string[] = []
  for (const name of ['a1', 'a2']) {
    quick.add({ user: 'a', identity: undefined, name }).then((name) => done.push(name), t.error)
    await pass(0)
  }
  t.strictSame(done, ['a1', 'a2'])
})

t.test('an item expires as DATABASE_SLOW if nothing has succeeded meanwhile', async (t) => {
  const advance = stopClock(t)
  for (const [successMs, error] of [[Infinity, 'DATABASE_SLOW'], [4800, 'OVERLOADED']] as const) {
    const batches: Array<() => void> = []
    const batcher = openBatcher((names) => new Promise((resolve) => batches.push(() => resolve(names))))
    const items = ['a', 'b', 'c'].map((name) =>
      batcher.add({ user: name, identity: undefined, name }).catch((error: Error) => error.name))
    for (let ms = 0; ms <= 5200; ms += 100) {
      if (ms === successMs) batches[0]?.()
      advance(100)
      await settlePromises()
    }
    t.equal(await items.at(-1), error)
  }
})

t.test('an expired token is checked before its item is queued, and before a retry', async (t) => {
  const batches: string[] = []
  const checked = Promise.withResolvers<void>()
  const identity = {
    user: 'a',
    validUntil: 0,
    renew () {
      renews.push(batches.length)
      identity.validUntil = Infinity
      return checked.promise
    }
  }
  const renews: number[] = []
  const alone = openBatcher(async (names) => {
    batches.push(`alone ${names.join(' ')}`)
    return names
  })
  const batcher = openBatcher(async (names) => {
    batches.push(names.join(' '))
    // The token expires while the batch is in flight.
    identity.validUntil = 0
    throw new Error('one item is at fault')
  }, { maxItems: 3, retries: { batcher: alone, isRetryable: () => true } })
  const response = { destroyed: false }
  const retried = batcher.add({ user: 'a', name: 'a1', identity })
  const closed = batcher.add({ user: 'b', name: 'b1', identity: undefined, response })
  await nextTick()
  t.strictSame(batches, ['b1'], 'the item waits for the check of its token')
  response.destroyed = true
  checked.resolve()
  await t.rejects(closed, { name: 'HTTP_MALFORMED' })
  t.equal(await retried, 'a1')
  t.strictSame(batches, ['b1', 'a1', 'alone a1'])
  t.strictSame(renews, [0, 2])
})

t.test('after a lag of the event loop, results that have arrived still count', async (t) => {
  const advance = stopClock(t)
  let sendResult = () => {}
  const batcher = openBatcher((names) => new Promise((resolve) => { sendResult = () => resolve(names) }))
  const results = ['a1', 'a2'].map((name) => batcher.add({ user: 'a', name, identity: undefined }))
  advance(0)
  await settlePromises()
  advance(100)
  const { now } = performance
  performance.now = () => now() + 6000
  // The timer runs before the result is read.
  advance(100)
  sendResult()
  await results[0]
  await settlePromises()
  advance(0)
  await settlePromises()
  sendResult()
  t.strictSame(await Promise.all(results), ['a1', 'a2'])
})

t.test('items also expire while the event loop lags all the time', async (t) => {
  const advance = stopClock(t)
  const batcher = openBatcher(() => new Promise(() => {}))
  const [, queued] = ['a1', 'a2'].map((name) => batcher.add({ user: 'a', name, identity: undefined }))
  advance(0)
  const expired = t.rejects(queued as Promise<string>, { name: 'DATABASE_SLOW' })
  const { now } = performance
  let lagMs = 0
  performance.now = () => now() + lagMs
  for (; lagMs < 7500; lagMs += 2500) advance(100)
  await expired
})

t.test('a user gets at most half of the free memory, until the response ends or is cut', async (t) => {
  const budget = new MemoryBudget(120)
  const [open, ended, cut] = [new PassThrough(), new PassThrough(), new PassThrough()]
  for (const [user, bytes, response, fits] of [
    ['mallory', 61, open, false], ['mallory', 30, ended, true], ['mallory', 30, cut, true],
    ['mallory', 1, open, false], ['alice', 30, open, true], ['alice', 1, open, false], ['bo', 15, open, true]
  ] as const) t.equal(budget.reserve(user, bytes, response), fits, `${bytes} of ${user}`)
  await once(ended.end().resume(), 'close')
  for (const bytes of [8, 7]) t.equal(budget.reserve('mallory', bytes, open), bytes === 7, `${bytes} more`)
  await once(cut.destroy(), 'close')
  for (const bytes of [31, 30]) t.equal(budget.reserve('mallory', bytes, open), bytes === 30, `${bytes} more`)
})

t.test('the heap is collected five seconds after a burst of large bodies or 1,000 connections', async (t) => {
  const advance = stopClock(t)
  const { calls } = t.capture(globalThis as { gc: (options: unknown) => void }, 'gc')
  const budget = new MemoryBudget(134_217_728)
  async function burst (bytes: number, waitMs: number, collections: number): Promise<void> {
    const response = new PassThrough()
    budget.reserve('mallory', bytes, response)
    await once(response.destroy(), 'close')
    advance(waitMs)
    t.equal(calls.length, collections)
  }
  await burst(16_777_216, 5000, 0)
  for (const bytes of [16_777_217, 16_777_217]) await burst(bytes, 4999, 0)
  advance(1)
  t.strictSame(calls.map(({ args }) => args), [[{ execution: 'async', flavor: 'last-resort' }]])
  await burst(1024, 5000, 1)
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
