// Tests the memory budget, the collection of garbage and the token buckets.
import assert from 'node:assert/strict'
import { once } from 'node:events'
import { Socket } from 'node:net'
import { PassThrough } from 'node:stream'
import fc from 'fast-check'
import Fastify from 'fastify'
import t from 'tap'
import { manageConnections } from '../../src/http/wire/connections.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { TokenBuckets } from '../../src/scheduling/token-buckets.ts'
import { stopClock } from '../support/orders.ts'

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

t.test('a bucket gives its burst, and then one token whenever its time has passed', async (t) => {
  const advance = stopClock(t)
  const buckets = new TokenBuckets({ count: 6, seconds: 60 }, 3)
  const taken = [1, 2, 3, 4].map(() => buckets.take('alice'))
  t.strictSame(taken, [[true, 2], [true, 1], [true, 0], [false, 0]].map(([allowed, left]) =>
    ({ allowed, left, refillSeconds: 10 })))
  advance(9750)
  t.strictSame(buckets.take('alice'), { allowed: false, left: 0, refillSeconds: 1 })
  advance(250)
  t.strictSame(buckets.take('alice', 0), { allowed: true, left: 1, refillSeconds: 10 })
  t.match(buckets.take('alice'), { allowed: true, left: 0 })
  advance(1_000_000)
  t.match(buckets.take('alice', 0), { left: 3 }, 'a bucket holds no more than its burst')
})

t.test('every sequence of requests gets what buckets of whole tokens would give', async (t) => {
  const advance = stopClock(t)
  const quarters = fc.oneof({ weight: 3, arbitrary: fc.constant(0) }, fc.integer({ min: 1, max: 8 }))
  const steps = fc.array(fc.tuple(fc.constantFrom('a', 'b'), quarters), { minLength: 50, maxLength: 100 })
  fc.assert(fc.property(fc.integer({ min: 1, max: 5 }), steps, (burst, steps) => {
    const buckets = new TokenBuckets({ count: 1, seconds: 1 }, burst)
    const model: Record<string, number> = { a: burst, b: burst }
    for (const [key, quarters] of steps) {
      // Floating-point sums of quarters are exact.
      advance(quarters * 250)
      for (const name in model) model[name] = Math.min((model[name] as number) + quarters / 4, burst)
      const tokens = model[key] as number
      const allowed = tokens >= 1
      const rest = model[key] = allowed ? tokens - 1 : tokens
      const left = Math.floor(rest)
      assert.deepEqual(buckets.take(key), { allowed, left, refillSeconds: Math.ceil(left + 1 - rest) })
    }
  }), { numRuns: 50 })
})

t.test('the 50,000 keys that were used last keep their buckets', async (t) => {
  stopClock(t)
  const buckets = new TokenBuckets({ count: 1, seconds: 60 }, 1)
  buckets.take('busy')
  for (let key = 1; key < 50_000; key++) buckets.take(`key ${key}`)
  for (let key = 1; key <= 50_000; key++) buckets.take(`read ${key}`, 0)
  t.notOk(buckets.take('busy').allowed, 'a read creates no bucket, and a rejected request keeps its bucket')
  buckets.take('last')
  t.ok(buckets.take('key 1', 0).allowed, 'the least recently used key starts anew')
  for (const key of ['key 2', 'busy', 'last']) t.notOk(buckets.take(key).allowed, key)
})
