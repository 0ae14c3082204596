import assert from 'node:assert/strict'
import fc from 'fast-check'
import t, { type Test } from 'tap'
import { TokenBuckets } from '../../src/scheduling/token-buckets.ts'

/** Stops the clock of `performance.now`. Returns a function that advances the clock. */
function stopClock (t: Test): (seconds: number) => void {
  let ms = 5000
  const { now } = performance
  performance.now = () => ms
  t.teardown(() => { performance.now = now })
  return (seconds) => { ms += seconds * 1000 }
}

t.test('a bucket gives its burst, and then one token whenever its time has passed', async (t) => {
  const advance = stopClock(t)
  const buckets = new TokenBuckets({ count: 6, seconds: 60 }, 3)
  t.same([1, 2, 3, 4].map(() => buckets.take('alice')), [
    { allowed: true, left: 2, refillSeconds: 10 },
    { allowed: true, left: 1, refillSeconds: 10 },
    { allowed: true, left: 0, refillSeconds: 10 },
    { allowed: false, left: 0, refillSeconds: 10 }
  ])
  t.match(buckets.take('bob'), { allowed: true, left: 2 }, 'another key has a bucket of its own')
  advance(9.75)
  t.same(buckets.peek('alice'), { allowed: false, left: 0, refillSeconds: 1 })
  t.match(buckets.take('alice'), { allowed: false })
  advance(0.25)
  t.same(buckets.peek('alice'), { allowed: true, left: 1, refillSeconds: 10 })
  t.match(buckets.take('alice'), { allowed: true, left: 0 })
  advance(1000)
  t.same(buckets.peek('alice'), { allowed: true, left: 3, refillSeconds: 10 }, 'it never holds more')
})

t.test('every sequence of requests gets what buckets of whole tokens would give', async (t) => {
  const advance = stopClock(t)
  const key = fc.constantFrom('a', 'b')
  const quarters = fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.integer({ min: 1, max: 8 }))
  fc.assert(fc.property(
    fc.integer({ min: 1, max: 5 }),
    fc.array(fc.tuple(key, quarters), { minLength: 100, maxLength: 200 }),
    (burst, steps) => {
      // The clock advances in quarters of a second, because floating-point sums of quarters are exact.
      const buckets = new TokenBuckets({ count: 1, seconds: 1 }, burst)
      const model: Record<string, number> = { a: burst, b: burst, c: burst }
      for (const [key, quarters] of steps) {
        advance(quarters / 4)
        for (const name in model) model[name] = Math.min((model[name] as number) + quarters / 4, burst)
        const tokens = model[key] as number
        const allowed = tokens >= 1
        if (allowed) model[key] = tokens - 1
        const left = Math.floor(model[key] as number)
        const refillSeconds = Math.ceil(left + 1 - (model[key] as number))
        assert.deepEqual(buckets.take(key), { allowed, left, refillSeconds })
      }
    }
  ), { numRuns: 200 })
})

t.test('many keys cannot displace the bucket of another key, and memory has a limit', async (t) => {
  const advance = stopClock(t)
  const buckets = new TokenBuckets({ count: 1, seconds: 60 }, 1)
  buckets.take('known')
  for (let key = 0; key < 60_000; key++) buckets.take(`early ${key}`)
  t.match(buckets.peek('known'), { allowed: false })
  t.match(buckets.peek('early 0'), { allowed: false })
  t.match(buckets.peek('early 59999'), { allowed: true }, 'a new key has no limit while the table is full')
  advance(50)
  for (let key = 0; key < 60_000; key++) buckets.take(`late ${key}`)
  t.same(buckets.peek('known'), { allowed: false, left: 0, refillSeconds: 10 })
  advance(70)
  buckets.take('new')
  t.match(buckets.peek('known'), { allowed: true })
  t.match(buckets.peek('new'), { allowed: false }, 'full buckets have left the table')
})

t.test('a bucket that is still in use keeps its place in a full table', async (t) => {
  const advance = stopClock(t)
  const buckets = new TokenBuckets({ count: 1, seconds: 1 }, 60)
  for (let sent = 0; sent < 60; sent++) buckets.take('busy')
  for (let key = 0; key < 60_000; key++) buckets.take(`other ${key}`)
  advance(59)
  t.match(buckets.take('busy'), { allowed: true, left: 58 })
  t.match(buckets.take('busy'), { allowed: true, left: 57 })
})
