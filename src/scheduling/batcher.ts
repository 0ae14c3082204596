// Queues items with fair shares for users, and sends queued items together in one statement.
import { ApiError, clientClosedRequest, errors, overloaded } from '../errors.ts'
import { batchEvents, requestContext } from '../telemetry-events.ts'
import { FairQueue } from './fair-queue.ts'

/** The user of an item, as the item's token tells. */
export interface Identity {
  readonly user: string
  /** A time of `performance.now()`. Later, call `renew` before the user's work is queued. */
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
  /** Set for work that may wait in the queue for any time. */
  neverExpires?: boolean
  /** If this response closes while the work is queued, the work does not start. */
  response?: { readonly destroyed: boolean }
}

export interface BatcherOptions<Item extends Work, Result> {
  name: string
  /** The most items in a batch, and the most batches in flight. */
  maxItems: number
  maxInFlight: number
  /** Only for `maxItems` 1: whether a user has at most one batch in flight. */
  isOnePerUser?: boolean
  maxQueued: number
  /** Whether each item gets a batch of its own at the moment. */
  isOneByOne?: () => boolean
  /** Gets the items of a batch that failed with a retryable error. */
  retries?: { batcher: Batcher<Item, Result>, isRetryable: (error: unknown) => boolean }
}

interface Entry<Item, Result> extends Omit<PromiseWithResolvers<Result>, 'promise'> {
  item: Item
  context: unknown
  /** A time of `performance.now()`, or Infinity for an item that never expires. */
  queuedAt: number
}

export const maxQueueMs = 5000
/** All expired items share this error if no batch succeeded while they were queued. */
const slow = new ApiError(errors.DATABASE_SLOW)
/** While entries are queued, how often the batcher looks for expired entries and slow batches. */
const checkMs = 100
/** A batch that is in flight for longer does not hold back the next one. */
const slowBatchMs = 200

/** In characters. Limits how long a small item waits for large ones. The first and small ones always fit. */
const maxBatchLength = 262_144
/** In characters. Fair queuing adds 1 to the cost of an item for each unit of its size. */
const sizeUnit = 4096

/** See docs/design/002-batches.md. */
export class Batcher<Item extends Work, Result> {
  readonly #run: (items: Item[]) => Promise<Result[]>
  readonly #options: BatcherOptions<Item, Result>
  readonly #queue = new FairQueue<Entry<Item, Result>>()
  /** When each batch in flight was sent, in this order. */
  readonly #inFlight: number[] = []
  /** With `isOnePerUser`: the users with a batch in flight. */
  readonly #busyUsers = new Set<string>()
  readonly #isBusy = (user: string) => this.#busyUsers.has(user)
  #succeededAt = -Infinity
  #scheduled: NodeJS.Immediate | undefined
  #timer: NodeJS.Timeout | undefined
  /** When the last check ran, and whether the event loop lagged before it. */
  #checkedAt = 0
  #wasLate = false

  /** `run` sends a statement, and resolves to the results in the order of the items. */
  constructor (run: (items: Item[]) => Promise<Result[]>, options: BatcherOptions<Item, Result>) {
    this.#run = run
    this.#options = options
  }

  /**
   * Rejects with OVERLOADED or DATABASE_SLOW if the queue is full or the item expires. The rejected item was
   * not sent, or its batch was rolled back. In a full queue, the newest entry of the user with the most
   * entries makes room.
   */
  add (item: Item): Promise<Result> {
    const { promise, resolve, reject } = Promise.withResolvers<Result>()
    this.#admit({ item, context: requestContext.getStore(), resolve, reject, queuedAt: Infinity })
    return promise
  }

  /** Queues the entry once its token is valid. */
  #admit (entry: Entry<Item, Result>): void {
    const { item: { identity }, reject } = entry
    if (identity === undefined || performance.now() < identity.validUntil) this.#enqueue(entry)
    else identity.renew().then(() => this.#enqueue(entry), reject)
  }

  #enqueue (entry: Entry<Item, Result>): void {
    const { user, size = 0, neverExpires = false } = entry.item
    if (!neverExpires) entry.queuedAt = performance.now()
    this.#queue.add(user, entry, 1 + Math.floor(size / sizeUnit), entry.queuedAt)
    if (this.#queue.size > this.#options.maxQueued) this.#queue.evictFromLargest(user).reject(overloaded)
    // Items that arrive in one tick start together.
    this.#scheduled ??= setImmediate(this.#drain)
  }

  /** Takes batches from the queue, and sends them. */
  readonly #drain = (): void => {
    this.#scheduled = undefined
    const maxItems = this.#options.isOneByOne?.() ? 1 : this.#options.maxItems
    while (this.#queue.size > 0 && this.#maySend(maxItems)) {
      const batch = this.#takeBatch(maxItems)
      if (batch.length === 0) break
      void this.#send(batch)
    }
    if (this.#queue.size > 0 && this.#timer === undefined) {
      this.#checkedAt = performance.now()
      this.#timer = setInterval(this.#check, checkMs).unref()
    }
  }

  /** While a batch is in flight, sends only full batches: many small batches take more processor time. */
  #maySend (maxItems: number): boolean {
    if (this.#inFlight.length === 0) return true
    return this.#inFlight.length < this.#options.maxInFlight &&
      (this.#queue.size >= maxItems || performance.now() - (this.#inFlight.at(-1) as number) > slowBatchMs)
  }

  #takeBatch (maxItems: number): Array<Entry<Item, Result>> {
    const batch: Array<Entry<Item, Result>> = []
    for (let left = maxBatchLength; batch.length < maxItems;) {
      const maxCost = batch.length === 0 ? Infinity : Math.max(1, left / sizeUnit)
      const entry = this.#queue.next(maxCost, this.#isBusy)
      if (entry === undefined) break
      if (entry.item.response?.destroyed) {
        entry.reject(clientClosedRequest)
        continue
      }
      batch.push(entry)
      left -= entry.item.size ?? 0
    }
    return batch
  }

  /** Settles all entries, or leaves them to `retries`. Never rejects. */
  async #send (batch: Array<Entry<Item, Result>>): Promise<void> {
    const { name, retries, isOnePerUser } = this.#options
    const sentAt = performance.now()
    this.#inFlight.push(sentAt)
    const { user } = (batch[0] as Entry<Item, Result>).item
    if (isOnePerUser) this.#busyUsers.add(user)
    batchEvents.publish({ name, items: batch.length })
    try {
      // With the contexts, traces link the statement to the requests of the batch.
      const contexts = batch.map(({ context }) => context)
      const items = batch.map(({ item }) => item)
      const results = await requestContext.run(contexts, () => this.#run(items))
      this.#succeededAt = performance.now()
      batch.forEach(({ resolve }, index) => resolve(results[index] as Result))
    } catch (error) {
      const retrying = retries?.isRetryable(error) ? retries.batcher : undefined
      for (const entry of batch) {
        if (retrying === undefined) entry.reject(error)
        else retrying.#admit(entry)
      }
    }
    this.#inFlight.splice(this.#inFlight.indexOf(sentAt), 1)
    this.#busyUsers.delete(user)
    if (this.#queue.size > 0) this.#scheduled ??= setImmediate(this.#drain)
  }

  readonly #check = (): void => {
    const now = performance.now()
    // After a lag of the event loop, first read the results that have arrived. Do so only once: on a busy
    // machine, each check may be late.
    this.#wasLate = !this.#wasLate && now - this.#checkedAt > 2 * checkMs
    this.#checkedAt = now
    for (const { queuedAt, reject } of this.#wasLate ? [] : this.#queue.takeExpired(now - maxQueueMs)) {
      reject(queuedAt > this.#succeededAt ? slow : overloaded)
    }
    if (this.#queue.size > 0) return this.#drain()
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
