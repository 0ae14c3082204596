// Sends items through a batcher in random orders of results, errors, checks of tokens and closed responses.
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import { clientClosedRequest, overloaded } from '../../src/errors.ts'
import { Batcher, type Identity, type Work } from '../../src/scheduling/batcher.ts'
import { must, runSteps, settlePromises, stopClock } from '../support/orders.ts'

const step = fc.record({
  act: fc.constantFrom('add', 'add', 'add', 'add', 'wait', 'wait', 'close'),
  user: fc.constantFrom('a', 'a', 'b', 'c'),
  // A batch fails if it has a `bad` or an `uncertain` item. Only the error of a `bad` item is retryable.
  fate: fc.constantFrom('good', 'good', 'good', 'bad', 'uncertain'),
  validMs: fc.constantFrom(Infinity, 0, 100, 300),
  isRevoked: fc.constantFrom(false, false, true),
  neverExpires: fc.constantFrom(false, false, true),
  waitMs: fc.constantFrom(100, 100, 300, 1000, 5500)
})
const options = fc.record({
  maxItems: fc.constantFrom(1, 2, 3), maxInFlight: fc.constantFrom(1, 2), maxQueued: fc.constantFrom(2, 4, 6)
})
type Step = typeof step extends fc.Arbitrary<infer Value> ? Value : never

type Place = 'renewal' | 'queue' | 'statement' | 'alone' | 'settled'
interface Item extends Work, Omit<Step, 'user' | 'neverExpires'> {
  place: Place
  /** Whether the item's batch has failed, so the item waits to run alone. */
  isRetry?: boolean
  queuedAt: number
  validUntil: number
  successes?: number
  error?: Error
  isGone?: boolean
}

t.test('in every order, each item succeeds or fails once, and users share fairly', async (t) => {
  const advance = stopClock(t)
  await fc.assert(fc.asyncProperty(
    fc.scheduler(), fc.array(step, { minLength: 5, maxLength: 30 }), options,
    async (s, steps, { maxQueued, maxItems, maxInFlight }) => {
      const items: Item[] = []
      const at = (place: Place, user?: string, isRetry?: boolean) => items.filter((item) =>
        item.place === place && (user === undefined || item.user === user) &&
        (isRetry === undefined || (item.isRetry ?? false) === isRetry))
      /** The items of each batch in flight, and since when it is in flight. */
      const batches = new Map<Item[], number>()
      let succeededAt = -Infinity

      async function run (sent: Item[], isAlone: boolean): Promise<Item[]> {
        const place = isAlone ? 'alone' : 'statement'
        for (const item of sent) {
          must(item.place === 'queue' && (item.isRetry ?? false) === isAlone, 'the item was queued')
          must(item.isGone !== true, 'the client still waits')
          item.place = place
        }
        if (isAlone) {
          must(sent.length === 1, 'each item is retried alone')
          must(at('alone').length <= 2, 'two retries at a time')
          must(at('alone', sent[0]?.user).length === 1, 'one retry of a user at a time')
        } else {
          const isSlow = performance.now() - Math.max(...batches.values()) > 200
          must(batches.size < maxInFlight, 'at most maxInFlight batches are in flight')
          must(batches.size === 0 || isSlow || sent.length + at('queue', undefined, false).length >= maxItems,
            'a further batch is full, or the batch in flight is slow')
          must(sent.length <= maxItems, 'a batch has at most maxItems items')
          batches.set(sent, performance.now())
        }
        await s.schedule(Promise.resolve(), 'statement')
        batches.delete(sent)
        const fate = ['uncertain', 'bad'].find((fate) => sent.some((item) => item.fate === fate))
        if (fate === undefined) {
          for (const item of sent) item.successes = (item.successes ?? 0) + 1
          if (!isAlone) succeededAt = performance.now()
          return sent
        }
        const error = new Error(fate)
        for (const item of sent) {
          if (fate === 'bad' && !isAlone) admit(Object.assign(item, { isRetry: true }))
          else item.error = error
        }
        throw error
      }

      const shared = { name: 'test', maxQueued }
      const alone = new Batcher<Item, Item>((sent) => run(sent, true),
        { ...shared, maxItems: 1, maxInFlight: 2, isOnePerUser: true })
      const isRetryable = (error: unknown) => (error as Error).message === 'bad'
      const batcher = new Batcher<Item, Item>((sent) => run(sent, false),
        { ...shared, maxItems, maxInFlight, retries: { batcher: alone, isRetryable } })

      /** The item waits for the check of its token, or is queued. */
      function admit (item: Item): void {
        item.place = performance.now() >= item.validUntil ? 'renewal' : 'queue'
        item.queuedAt = performance.now()
      }

      const identityOf = (item: Item): Identity => ({
        user: item.user,
        validUntil: item.validUntil,
        async renew () {
          must(item.place === 'renewal', 'a check is needed')
          await s.schedule(Promise.resolve(), 'renewal')
          if (item.isRevoked) throw item.error = new Error('revoked')
          item.validUntil = performance.now() + 1000
          Object.assign(this, { validUntil: item.validUntil })
          admit(item)
        }
      })

      async function add (step: Step): Promise<void> {
        const item: Item = {
          ...step,
          identity: undefined,
          validUntil: performance.now() + step.validMs,
          place: 'queue',
          queuedAt: 0
        }
        item.response = { get destroyed () { return item.isGone === true } }
        if (step.validMs < Infinity) item.identity = identityOf(item)
        items.push(item)
        admit(item)
        try {
          must(await batcher.add(item) === item && item.successes === 1, 'an item succeeds once')
        } catch (error) {
          must(item.successes === undefined, 'a rejected item has no effect')
          const waitedMs = performance.now() - item.queuedAt
          if (error === clientClosedRequest) must(item.isGone === true, 'the response is closed')
          else if ((error as Error).name === 'DATABASE_SLOW') {
            must(waitedMs >= 5000 && !item.neverExpires, 'the item has expired')
            const isSlow = item.isRetry === true || item.queuedAt > succeededAt
            must(isSlow, 'the database has returned nothing since')
          } else if (error !== overloaded) {
            const isOwn = error === item.error && (item.fate === 'bad' || item.error?.message !== 'bad')
            must(isOwn, 'a bad item fails no other item')
          } else if (waitedMs < 5000) {
            const queued = (user?: string) => at('queue', user, item.isRetry ?? false).length
            must(queued() > maxQueued, 'only a full queue rejects an item')
            const most = Math.max(...['a', 'b', 'c'].map((user) => queued(user)))
            must(queued(item.user) === most, 'the user with the most items loses an item')
          }
        }
        item.place = 'settled'
      }

      async function wait ({ waitMs }: Step): Promise<void> {
        for (let ms = 0; ms < waitMs; ms += 100) {
          for (const passed of [100, 0]) {
            advance(passed)
            await settlePromises()
          }
          const late = at('queue').filter(({ queuedAt, neverExpires }) =>
            !neverExpires && performance.now() - queuedAt > 5100)
          must(late.length === 0, 'an item waits for at most 5 s')
        }
      }

      await runSteps(s, steps, async (step) => {
        if (step.act === 'add') add(step)
        else if (step.act === 'wait') await wait(step)
        else Object.assign(items.findLast(({ place }) => place !== 'settled') ?? {}, { isGone: true })
      }, () => {
        const queued = at('queue', undefined, false)
        const isFull = batches.size === maxInFlight || (batches.size > 0 && queued.length < maxItems)
        must(queued.every(({ isGone }) => isGone) || isFull, 'no item waits needlessly')
        must(queued.length <= maxQueued, 'at most maxQueued items wait')
      })
      assert(items.every(({ place }) => place === 'settled'), 'every item settles')
    }
  ), { numRuns: 250 })
})
