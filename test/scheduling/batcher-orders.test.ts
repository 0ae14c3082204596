// Sends items through a batcher in random orders of results, errors, renewals, timeouts and closed responses.
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { clientClosedRequest, overloaded } from '../../src/errors.ts'
import { createBatcher, type Identity, type Work } from '../../src/scheduling/batcher.ts'
import { must, runSteps, settlePromises, stopClock } from '../support/orders.ts'

const step = fc.record({
  act: fc.constantFrom('add', 'add', 'add', 'add', 'wait', 'wait', 'close'),
  user: fc.constantFrom('a', 'a', 'b', 'c'),
  // A batch fails if it has a `bad` or an `uncertain` item. Only the error of a `bad` item is retryable.
  fate: fc.constantFrom('good', 'good', 'good', 'bad', 'uncertain'),
  validMs: fc.constantFrom(Infinity, 100, 300),
  isRevoked: fc.constantFrom(false, false, true),
  // With -Infinity, `queuedAt` is Infinity: the item never expires.
  queuedMs: fc.constantFrom(undefined, undefined, 4800, -Infinity),
  waitMs: fc.constantFrom(100, 100, 500, 1000, 1200, 5500)
})
const options = fc.record({
  maxItems: fc.constantFrom(1, 2, 3), maxInFlight: fc.constantFrom(1, 2), maxQueued: fc.constantFrom(2, 4, 6)
})
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never

interface Item extends Work, Omit<Step, 'user'> {
  place: 'queue' | 'expired' | 'taken' | 'renewal' | 'statement' | 'retry' | 'settled'
  validUntil: number
  /** How many statements of the item's batch, and of its retries, are in flight. */
  batch?: { statements: number }
  successes?: number
  error?: Error
  isGone?: boolean
  /** Set after a renewal for a retry. The batch does not wait for this retry. */
  isLate?: boolean
}

t.test('in every order, each item succeeds or fails once, and users share fairly', async (t) => {
  const advance = stopClock(t)
  await fc.assert(fc.asyncProperty(
    fc.scheduler(), fc.array(step, { minLength: 5, maxLength: 30 }), options,
    async (s, steps, { maxQueued, ...limits }) => {
      const items: Item[] = []
      const at = (place: Item['place'], user?: string) =>
        items.filter((item) => item.place === place && (user === undefined || item.user === user))
      const mayRun = ({ place, validUntil, isGone }: Item) => must(
        /taken|retry/.test(place) && performance.now() < validUntil && isGone !== true, 'the item may run')

      /** The batches that count toward `maxInFlight`. */
      const counted = new Set<Item['batch'] & {}>()
      let checksWithoutProgress = 0
      function countBatches (): number {
        for (const batch of counted) {
          if (batch.statements === 0 && counted.delete(batch)) checksWithoutProgress = 0
        }
        return counted.size
      }

      let succeededAt = -Infinity
      /** How many items have left the queue since the last batch. */
      let taken = 0
      const batcher = createBatcher<Item, Item>(async (sent, isRetry) => {
        must(isRetry === sent.some(({ place }) => place === 'retry'), 'the sender knows of a retry')
        must(!isRetry || sent.length === 1, 'each item is retried alone')
        must(isRetry || countBatches() < limits.maxInFlight, 'at most maxInFlight batches are in flight')
        must(isRetry || countBatches() === 0 || taken >= limits.maxItems, 'a further batch is full')
        if (!isRetry) taken = 0
        must(sent.length <= limits.maxItems, 'a batch has at most maxItems items')
        const batch = (isRetry ? sent[0]?.batch : undefined) ?? { statements: 0 }
        if (!isRetry) counted.add(batch)
        const isLate = sent[0]?.isLate === true
        if (!isLate) batch.statements++
        for (const item of sent) {
          mayRun(item)
          Object.assign(item, { place: 'statement', batch })
        }
        await s.schedule(Promise.resolve(), 'statement')
        if (!isLate) batch.statements--
        const fate = ['uncertain', 'bad'].find((fate) => sent.some((item) => item.fate === fate))
        const error = fate === undefined ? undefined : new Error(fate)
        for (const item of sent) {
          if (error === undefined) item.successes = (item.successes ?? 0) + 1
          else if (fate === 'bad' && sent.length > 1) item.place = 'retry'
          else item.error = error
        }
        if (error !== undefined) throw error
        succeededAt = performance.now()
        return sent
      }, {
        name: 'test',
        limits,
        maxQueued,
        isRetryable: (error) => (error as Error).message === 'bad'
      })

      const identityOf = (item: Item): Identity => ({
        user: item.user,
        validUntil: performance.now() + item.validMs,
        async renew () {
          must(/taken|retry/.test(item.place) && performance.now() >= item.validUntil, 'a renewal is needed')
          const isRetry = item.place === 'retry'
          item.place = 'renewal'
          await s.schedule(Promise.resolve(), 'renewal')
          if (item.isRevoked) throw item.error = new Error('revoked')
          item.validUntil = performance.now() + item.validMs
          Object.assign(this, { validUntil: item.validUntil })
          if (isRetry) Object.assign(item, { place: 'retry', isLate: true })
          else enqueue(item)
        }
      })

      /** For each user: the users that were served since this user was served, or began to wait. */
      const served = new Map<string, Set<string>>()
      function enqueue (item: Item): void {
        item.place = performance.now() - (item.queuedAt as number) > 5000 ? 'expired' : 'queue'
        if (at('queue', item.user).length === 1) served.set(item.user, new Set())
      }
      function take (item: Item): void {
        if (item.place !== 'queue') return
        item.place = 'taken'
        taken++
        for (const [user, others] of served) {
          if (user === item.user) others.clear()
          else if (at('queue', user).length > 0) must(!others.has(item.user), 'users take turns')
          others.add(item.user)
        }
      }

      async function add (step: Step): Promise<void> {
        const validUntil = performance.now() + step.validMs
        const item: Item = { ...step, identity: undefined, validUntil, place: 'queue' }
        if (step.queuedMs !== undefined) item.queuedAt = performance.now() - step.queuedMs
        item.response = {
          get destroyed () {
            take(item)
            return item.isGone === true
          }
        }
        if (step.validMs < Infinity) item.identity = identityOf(item)
        items.push(item)
        enqueue(item)
        try {
          must(await batcher.add(item) === item && item.successes === 1, 'an item succeeds once')
        } catch (error) {
          must(item.successes === undefined, 'a rejected item has no effect')
          if (error === clientClosedRequest) must(item.isGone === true, 'the response is closed')
          else if ((error as Error).name === 'DATABASE_SLOW') {
            const isSlow = item.queuedAt as number > succeededAt
            must(item.place === 'expired' && isSlow, 'the database has returned nothing since')
          } else if (error !== overloaded) {
            const isOwn = error === item.error && (item.fate === 'bad' || item.error?.message !== 'bad')
            must(isOwn, 'a bad item fails no other item')
          } else if (item.place !== 'expired') {
            must(at('queue').length > maxQueued, 'only a full queue rejects an item')
            const most = Math.max(...['a', 'b', 'c'].map((user) => at('queue', user).length))
            must(at('queue', item.user).length === most, 'the user with the most items loses an item')
          }
        }
        item.place = 'settled'
      }

      async function wait ({ waitMs }: Step): Promise<void> {
        for (let ms = 0; ms < waitMs; ms += 100) {
          for (const item of at('queue')) {
            if (item.queuedAt as number < performance.now() + 100 - 5000) item.place = 'expired'
          }
          checksWithoutProgress = countBatches() === 0 ? 0 : checksWithoutProgress + 1
          if (checksWithoutProgress > 10) counted.clear()
          if (counted.size === 0) checksWithoutProgress = 0
          for (const passed of [100, 0]) {
            advance(passed)
            await settlePromises()
          }
          must(at('expired').length === 0, 'an item waits for at most 5 s')
        }
      }

      await runSteps(s, steps, async (step) => {
        if (step.act === 'add') add(step)
        else if (step.act === 'wait') await wait(step)
        else Object.assign(items.findLast(({ place }) => place !== 'settled') ?? {}, { isGone: true })
      }, () => {
        const mustWait = countBatches() === limits.maxInFlight ||
          (countBatches() > 0 && at('queue').length < limits.maxItems)
        must(at('queue').length === 0 || mustWait, 'no item waits needlessly')
        must(at('queue').length <= maxQueued, 'at most maxQueued items wait')
        must(items.every(({ place }) => !/expired|taken|retry/.test(place)), 'no item is lost')
      })
      assert(items.every(({ place }) => place === 'settled'), 'every item settles')
    }
  ), { numRuns: 250 })
})
