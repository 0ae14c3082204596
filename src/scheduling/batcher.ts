// Queues items with fair shares for users, and sends queued items together in one statement.
import { ApiError, clientClosedRequest, errors, overloaded } from '../errors.ts'
import { batchEvents, requestContext } from '../events.ts'
import { FairQueue } from './fair-queue.ts'

/** The user of an item, as the item's token tells. */
export interface Identity {
  readonly user: string
  /** A time of `performance.now()`. Later, call `renew` before the user's work is sent. */
  readonly validUntil: number
  /** Checks the token again and sets `validUntil`. Rejects with TOKEN_INVALID, or with a 503. */
  renew (): Promise<void>
}

export interface Work {
  user: string
  /** Undefined for work of the service itself. */
  identity: Identity | undefined
  /** The length of the work's texts, in characters. The default is 0. */
  size?: number
  /** A time of `performance.now()`. The default is the current time. With Infinity the work never expires. */
  queuedAt?: number
  /** If this response closes while the work is queued, the work does not start. */
  response?: { readonly destroyed: boolean }
}

export interface BatcherOptions {
  name: string
  /** The most items per batch and the most batches in flight. */
  limits: { maxItems: number, maxInFlight: number }
  /** Whether `unbatched` replaces `limits` at the moment. */
  isOneByOne?: () => boolean
  maxQueued: number
  /** Whether to retry each item alone after a batch has failed with this error. */
  isRetryable: (error: unknown) => boolean
}

/** Limits that turn batching off: one item per statement. */
export const unbatched = { maxItems: 1, maxInFlight: 100 }

const maxQueueMs = 5000
/** All expired items share this error if no batch succeeded while they were queued. */
const slow = new ApiError(errors.DATABASE_SLOW)
/** How often the batcher looks for expired items and stalled batches. */
const checkMs = 100
// If no batch finishes during this many checks, the batches in flight no longer count toward `maxInFlight`.
// Otherwise batches that wait for a locked row would delay all other users.
const maxStalledChecks = 10

/** In characters. Limits how long a small item waits for large items. The first item may be larger. */
const maxBatchLength = 262_144
/** In characters. Fair queuing adds 1 to the cost of an item for each unit of its size. */
const sizeUnit = 4096

/**
 * See docs/design/002-batches.md. `run` sends a statement, and resolves to the results in the order of the
 * items. A retry is an item of a batch that has failed.
 */
export function createBatcher<Item extends Work, Result> (
  run: (items: Item[], isRetry: boolean) => Promise<Result[]>,
  { name, limits, isOneByOne, maxQueued, isRetryable }: BatcherOptions
) {
  interface Entry extends Omit<PromiseWithResolvers<Result>, 'promise'> { item: Item, context: unknown }
  const queue = new FairQueue<Entry>()
  /** Batches that count toward `maxInFlight`, and checks since one ended. A stall replaces the object. */
  let inFlight = { batches: 0, stalledChecks: 0 }
  let succeededAt = -Infinity
  /** When the last check ran, and whether the event loop lagged before it. */
  let [checkedAt, wasLate] = [0, false]
  let scheduled: NodeJS.Immediate | undefined
  let timer: NodeJS.Timeout | undefined

  /**
   * Rejects with OVERLOADED or DATABASE_SLOW if the queue is full or the item expires. The rejected item was
   * not sent. In a full queue, the newest entry of the user with the most entries makes room.
   */
  function add (item: Item): Promise<Result> {
    const { user, size = 0, queuedAt = performance.now() } = item
    item.queuedAt = queuedAt
    const { promise, resolve, reject } = Promise.withResolvers<Result>()
    const entry = { item, context: requestContext.getStore(), resolve, reject }
    queue.add(user, entry, 1 + Math.floor(size / sizeUnit), queuedAt)
    if (queue.size > maxQueued) queue.evictFromLargest(user).reject(overloaded)
    timer ??= startChecks()
    // Items that arrive in one tick start together.
    scheduled ??= setImmediate(drain)
    return promise
  }

  /** Takes batches from the queue, and sends them. */
  function drain (): void {
    scheduled = undefined
    const { maxItems, maxInFlight } = isOneByOne?.() ? unbatched : limits
    const counted = inFlight
    // While a batch is in flight, send only full batches: many small batches take more processor time.
    while (counted.batches === 0 || (counted.batches < maxInFlight && queue.size >= maxItems)) {
      const batch: Entry[] = []
      for (let left = maxBatchLength; batch.length < maxItems;) {
        const entry = queue.next(batch.length === 0 ? Infinity : Math.max(1, left / sizeUnit))
        if (entry === undefined) break
        if (!mayRun(entry)) continue
        batch.push(entry)
        left -= entry.item.size ?? 0
      }
      if (batch.length === 0) return
      counted.batches++
      void send(batch).then(() => {
        counted.batches--
        counted.stalledChecks = 0
        if (queue.size > 0) scheduled ??= setImmediate(drain)
      })
    }
  }

  /** Call this right before a statement is sent. False: leave the entry to `reject` or `renew`. */
  function mayRun (entry: Entry, isRetry = false): boolean {
    const { item: { response, identity }, reject } = entry
    const isExpired = identity !== undefined && performance.now() >= identity.validUntil
    if (response?.destroyed) reject(clientClosedRequest)
    else if (isExpired) renew(entry, identity, isRetry).catch(reject)
    else return true
    return false
  }

  /** If the token is still valid, queues the entry again, or sends a retry. */
  async function renew (entry: Entry, identity: Identity, isRetry: boolean): Promise<void> {
    await identity.renew()
    if (isRetry) return retry(entry)
    if (performance.now() - (entry.item.queuedAt as number) > maxQueueMs) throw overloaded
    entry.resolve(requestContext.run(entry.context, () => add(entry.item)))
  }

  /** Settles all entries, and never rejects. */
  async function send (batch: Entry[], isRetry = false): Promise<void> {
    batchEvents.publish({ name, items: batch.length })
    try {
      // With the contexts, traces link the statement to the requests of the batch.
      const contexts = batch.map(({ context }) => context)
      const items = batch.map(({ item }) => item)
      const results = await requestContext.run(contexts, () => run(items, isRetry))
      succeededAt = performance.now()
      batch.forEach(({ resolve }, index) => resolve(results[index] as Result))
    } catch (error) {
      if (batch.length === 1 || !isRetryable(error)) for (const { reject } of batch) reject(error)
      else await Promise.all(batch.map((one) => retry(one)))
    }
  }

  /** Sends an item of a failed batch alone. */
  async function retry (entry: Entry): Promise<void> {
    if (mayRun(entry, true)) await send([entry], true)
  }

  function startChecks (): NodeJS.Timeout {
    checkedAt = performance.now()
    return setInterval(check, checkMs).unref()
  }

  function check (): void {
    const now = performance.now()
    // After a lag of the event loop, first read the results that have arrived. Do so only once: on a busy
    // machine, each check may be late.
    wasLate = !wasLate && now - checkedAt > 2 * checkMs
    checkedAt = now
    for (const { item, reject } of wasLate ? [] : queue.takeExpired(now - maxQueueMs)) {
      reject(item.queuedAt as number > succeededAt ? slow : overloaded)
    }
    if (inFlight.batches > 0 && ++inFlight.stalledChecks > maxStalledChecks) {
      inFlight = { batches: 0, stalledChecks: 0 }
      drain()
    }
    if (inFlight.batches > 0 || queue.size > 0) return
    clearInterval(timer)
    timer = undefined
  }

  return { add }
}
