// Queues items with fair shares for users, and sends queued items together in one statement.
import { clientClosedRequest, overloaded } from '../errors.ts'
import { batchEvents, requestContext } from '../events.ts'
import { FairQueue } from './fair-queue.ts'

/** The user of an item, as the item's token tells. */
export interface Identity {
  readonly user: string
  /** A time of `performance.now()`. Later, the token must be checked again before it has an effect. */
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
  /** Whether `singles` replaces `limits` at the moment. */
  isOneByOne?: () => boolean
  maxQueued: number
  /** Whether to retry each item alone after a batch has failed with this error. */
  isRetryable: (error: unknown) => boolean
}

/** Limits that turn batching off: one item per statement. */
export const singles = { maxItems: 1, maxInFlight: 100 }

const maxQueueMs = 5000
/** How often the batcher looks for expired items and stalled batches. */
const checkMs = 100
// If no batch finishes during this many checks, the batches in flight no longer count toward `maxInFlight`.
// Otherwise batches that wait for a locked row would delay all other users.
const maxStalledChecks = 10

/** In characters. Limits how long a small item waits for large items of the same batch. */
const maxBatchLength = 262_144
/** In characters. Fair queuing adds 1 to the cost of an item for each unit of its size. */
const sizeUnit = 4096

interface Entry<Item, Result> extends Omit<PromiseWithResolvers<Result>, 'promise'> {
  item: Item
  context: unknown
}

/** See docs/design/002-batches.md. */
export class Batcher<Item extends Work, Result> {
  readonly #run: (items: Item[], isRetry: boolean) => Promise<Result[]>
  readonly #options: BatcherOptions
  readonly #queue = new FairQueue<Entry<Item, Result>>()
  /** The batches that count toward `maxInFlight`, and the checks since one of them has finished. */
  #inFlight = { batches: 0, stalledChecks: 0 }
  #scheduled: NodeJS.Immediate | undefined
  #timer: NodeJS.Timeout | undefined

  /** `run` sends a statement, and resolves to the results in the order of the items. */
  constructor (run: (items: Item[], isRetry: boolean) => Promise<Result[]>, options: BatcherOptions) {
    this.#run = run
    this.#options = options
  }

  /**
   * Rejects with OVERLOADED if the queue is full or the item expires. The rejected item was not sent. In a
   * full queue, the newest entry of the user with the most entries makes room.
   */
  add (item: Item): Promise<Result> {
    const { user, size = 0, queuedAt = performance.now() } = item
    item.queuedAt = queuedAt
    const { promise, resolve, reject } = Promise.withResolvers<Result>()
    const entry = { item, context: requestContext.getStore(), resolve, reject }
    this.#queue.add(user, entry, 1 + Math.floor(size / sizeUnit), queuedAt)
    if (this.#queue.size > this.#options.maxQueued) this.#queue.evictFromLargest(user).reject(overloaded)
    this.#timer ??= setInterval(() => this.#check(), checkMs).unref()
    // Items that arrive in one iteration of the event loop start together.
    this.#scheduled ??= setImmediate(() => this.#drain())
    return promise
  }

  #drain (): void {
    this.#scheduled = undefined
    const { limits, isOneByOne } = this.#options
    const { maxItems, maxInFlight } = isOneByOne?.() ? singles : limits
    const inFlight = this.#inFlight
    // While a batch is in flight, send only full batches: many small batches take more processor time.
    while (inFlight.batches === 0 || (inFlight.batches < maxInFlight && this.#queue.size >= maxItems)) {
      const batch = this.#takeBatch(maxItems)
      if (batch.length === 0) return
      inFlight.batches++
      void this.#send(batch).then(() => {
        inFlight.batches--
        inFlight.stalledChecks = 0
        this.#scheduled ??= setImmediate(() => this.#drain())
      })
    }
  }

  #takeBatch (maxItems: number): Array<Entry<Item, Result>> {
    const batch: Array<Entry<Item, Result>> = []
    let left = maxBatchLength
    while (batch.length < maxItems) {
      const entry = this.#queue.next(batch.length === 0 ? Infinity : Math.max(1, left / sizeUnit))
      if (entry === undefined) break
      if (!this.#mayRun(entry)) continue
      batch.push(entry)
      left -= entry.item.size ?? 0
    }
    return batch
  }

  /** Call this right before a statement is sent. False: the entry is settled, or its token is checked. */
  #mayRun (entry: Entry<Item, Result>, isRetry = false): boolean {
    const { item: { response, identity }, reject } = entry
    if (response?.destroyed) {
      reject(clientClosedRequest)
      return false
    }
    if (identity !== undefined && performance.now() >= identity.validUntil) {
      this.#renew(entry, identity, isRetry).catch(reject)
      return false
    }
    return true
  }

  /** If the token is still valid, queues the entry again, or sends a retry. */
  async #renew (entry: Entry<Item, Result>, identity: Identity, isRetry: boolean): Promise<void> {
    await identity.renew()
    if (isRetry) return this.#retry(entry)
    if (performance.now() - (entry.item.queuedAt as number) > maxQueueMs) throw overloaded
    entry.resolve(requestContext.run(entry.context, () => this.add(entry.item)))
  }

  /** Settles all entries, and never rejects. */
  async #send (batch: Array<Entry<Item, Result>>, isRetry = false): Promise<void> {
    const { name, isRetryable } = this.#options
    batchEvents.publish({ name, items: batch.length })
    try {
      // With the contexts, traces link the statement to the requests of the batch.
      const contexts = batch.map(({ context }) => context)
      const items = batch.map(({ item }) => item)
      const results = await requestContext.run(contexts, () => this.#run(items, isRetry))
      batch.forEach(({ resolve }, index) => resolve(results[index] as Result))
    } catch (error) {
      if (batch.length === 1 || !isRetryable(error)) for (const { reject } of batch) reject(error)
      else await Promise.all(batch.map((one) => this.#retry(one)))
    }
  }

  /** Sends an item of a failed batch alone. */
  async #retry (entry: Entry<Item, Result>): Promise<void> {
    if (this.#mayRun(entry, true)) await this.#send([entry], true)
  }

  #check (): void {
    for (const { reject } of this.#queue.takeExpired(performance.now() - maxQueueMs)) reject(overloaded)
    if (this.#inFlight.batches > 0 && ++this.#inFlight.stalledChecks > maxStalledChecks) {
      this.#inFlight = { batches: 0, stalledChecks: 0 }
      this.#drain()
    }
    if (this.#inFlight.batches > 0 || this.#queue.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
