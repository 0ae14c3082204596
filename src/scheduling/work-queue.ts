// Admission control: decides which work starts, which work is queued, and which work is rejected.
import { clientClosedRequest, overloaded } from '../errors.ts'
import { FairQueue } from './fair-queue.ts'

export interface Work {
  user: string
  /** The length of the work's texts, in characters. The default is 0. */
  size?: number
  /** A time of `performance.now()`. The default is the current time. With Infinity the work never expires. */
  queuedAt?: number
  /** If this response closes while the work is queued, the work does not start. */
  response?: { readonly destroyed: boolean }
}

export interface Queued<Item extends Work> {
  item: Item
  reject: (error: unknown) => void
}

export interface WorkQueueOptions {
  /** Returns the most items per group and the most groups in flight. Both numbers may change at run time. */
  limits: () => { maxItems: number, maxInFlight: number }
  maxQueued: number
}

const maxQueueMs = 5000

/** How often the queue looks for expired items and stalled groups. */
const checkMs = 100

// If no group finishes during this many checks, the groups in flight no longer count toward `maxInFlight`.
// Otherwise groups that wait for a locked row would delay all other users.
const maxStalledChecks = 10

/** In characters. Limits how long a small item waits for large items of the same group. */
const maxGroupSize = 262_144

/** In characters. Fair queuing adds 1 to the cost of an item for each unit of its size. */
const sizeUnit = 4096

/** Starts queued work in groups, with fair shares for users. `start` settles all items, and never rejects. */
export class WorkQueue<Entry extends Queued<Work>> {
  readonly #start: (group: Entry[]) => Promise<void>
  readonly #options: WorkQueueOptions
  readonly #queue = new FairQueue<Entry>()
  #inFlight = 0
  /** Incremented when the groups in flight no longer count toward `maxInFlight`. */
  #generation = 0
  #stalledChecks = 0
  #scheduled: NodeJS.Immediate | undefined
  #timer: NodeJS.Timeout | undefined

  constructor (start: (group: Entry[]) => Promise<void>, options: WorkQueueOptions) {
    this.#start = start
    this.#options = options
  }

  /** If the queue is full, the newest entry of the user with the most entries is rejected with OVERLOADED. */
  add (entry: Entry): void {
    const { user, size = 0, queuedAt } = entry.item
    if (this.#queue.size >= this.#options.maxQueued) {
      const evicted = this.#queue.evictFromLargest(user)
      if (evicted === undefined) return entry.reject(overloaded)
      evicted.reject(overloaded)
    }
    this.#queue.add(user, entry, 1 + Math.floor(size / sizeUnit), queuedAt)
    this.#timer ??= setInterval(() => this.#check(), checkMs).unref()
    this.#schedule()
  }

  /** Items that arrive in one iteration of the event loop start together. */
  #schedule (): void {
    this.#scheduled ??= setImmediate(() => {
      this.#scheduled = undefined
      this.#drain()
    })
  }

  #drain (): void {
    const { maxItems, maxInFlight } = this.#options.limits()
    const generation = this.#generation
    while (this.#inFlight < maxInFlight) {
      const group = this.#takeGroup(maxItems)
      if (group.length === 0) return
      this.#inFlight++
      this.#start(group).then(() => {
        if (generation !== this.#generation) return
        this.#inFlight--
        this.#stalledChecks = 0
        this.#schedule()
      })
    }
  }

  #takeGroup (maxItems: number): Entry[] {
    const group: Entry[] = []
    let maxCost = Infinity
    let cost = 0
    while (group.length < maxItems) {
      const entry = this.#queue.next(maxCost)
      if (entry === undefined) break
      if (entry.item.response?.destroyed) {
        entry.reject(clientClosedRequest)
        continue
      }
      group.push(entry)
      cost += (entry.item.size ?? 0) / sizeUnit
      maxCost = Math.max(1, maxGroupSize / sizeUnit - cost)
    }
    return group
  }

  #check (): void {
    for (const { reject } of this.#queue.takeExpired(performance.now() - maxQueueMs)) reject(overloaded)
    if (this.#inFlight === 0) this.#stalledChecks = 0
    else if (++this.#stalledChecks > maxStalledChecks) {
      this.#generation++
      this.#inFlight = 0
      this.#stalledChecks = 0
      this.#drain()
    }
    if (this.#inFlight > 0 || this.#queue.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
