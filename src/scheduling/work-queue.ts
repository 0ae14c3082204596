// Admission control: how much work is in flight, how much is queued, and which work is rejected.
import { clientClosedRequest, overloaded } from '../errors.ts'
import { FairQueue } from './fair-queue.ts'

export interface Work {
  user: string
  /** In characters. */
  size?: number | undefined
  /** By performance.now(), when the work was queued before. Infinity: never expires. */
  queuedAt?: number | undefined
  /** Work for a closed response is not started. */
  response?: { readonly destroyed: boolean } | undefined
}

export interface Queued<Item extends Work> {
  item: Item
  reject: (error: unknown) => void
}

export interface Limits {
  /** How many items start together. */
  maxItems: number
  /** How many groups may be in flight. */
  maxInFlight: number
}

export interface WorkQueueOptions {
  /** Asked each time, since a property of the database may change them. */
  limits: () => Limits
  /** How many items may be queued before one is rejected. */
  maxQueued: number
}

/** As long as a statement may take by default: a client of a database that hangs gets a response in time. */
const maxQueueMs = 5000

const tickMs = 100

/**
 * After so many ticks without a finished group those in flight no longer count, so that a locked row does
 * not hold up other users. Longer than an unresponsive connection is kept: the next group gets a new one.
 * Counted in ticks, since a lagging event loop is late for results and ticks alike.
 */
const maxStalledTicks = 10

/** The work of one group, in characters: small items do not wait long for large ones of the same group. */
const maxGroupSize = 262_144

/** The work that counts as much as one small item when users take turns, in characters. */
const sizeUnit = 4096

/** Starts queued work in groups, fair by user. `start` settles the items; its promise never rejects. */
export class WorkQueue<Entry extends Queued<Work>> {
  readonly #start: (group: Entry[]) => Promise<void>
  readonly #options: WorkQueueOptions
  readonly #queue = new FairQueue<Entry>()
  #inFlight = 0
  /** Of the groups that count as in flight. */
  #generation = 0
  #stalledTicks = 0
  #hasFinished = false
  #isScheduled = false
  #timer: NodeJS.Timeout | undefined

  constructor (start: (group: Entry[]) => Promise<void>, options: WorkQueueOptions) {
    this.#start = start
    this.#options = options
  }

  /** Items that are queued. */
  get size (): number {
    return this.#queue.size
  }

  /** Rejects with OVERLOADED past `maxQueued`: this entry, or one of the user who has the most entries. */
  add (entry: Entry): void {
    const { user, size = 0, queuedAt } = entry.item
    if (this.#queue.size >= this.#options.maxQueued) {
      const evicted = this.#queue.evictFromLargest(user)
      if (evicted === undefined) return entry.reject(overloaded)
      evicted.reject(overloaded)
    }
    this.#queue.add(user, entry, 1 + Math.floor(size / sizeUnit), queuedAt)
    this.#timer ??= setInterval(() => this.#tick(), tickMs).unref()
    if (this.#inFlight < this.#options.limits().maxInFlight) this.#schedule()
  }

  /** Items that arrive in the same tick start together. */
  #schedule (): void {
    if (this.#isScheduled) return
    this.#isScheduled = true
    setImmediate(() => {
      this.#isScheduled = false
      this.#drain()
    })
  }

  #drain (): void {
    const { maxItems, maxInFlight } = this.#options.limits()
    while (this.#inFlight < maxInFlight) {
      const group = this.#takeGroup(maxItems)
      if (group.length === 0) return
      this.#run(group)
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

  #run (group: Entry[]): void {
    const generation = this.#generation
    this.#inFlight++
    this.#start(group).then(() => {
      if (generation !== this.#generation) return
      this.#inFlight--
      this.#hasFinished = true
      if (this.#queue.size > 0) this.#schedule()
    })
  }

  #tick (): void {
    for (const { reject } of this.#queue.takeExpired(performance.now() - maxQueueMs)) reject(overloaded)
    const isStalled = this.#inFlight > 0 && !this.#hasFinished
    this.#stalledTicks = isStalled ? this.#stalledTicks + 1 : 0
    this.#hasFinished = false
    if (this.#stalledTicks === maxStalledTicks) {
      this.#generation++
      this.#inFlight = this.#stalledTicks = 0
      this.#drain()
    }
    if (this.#inFlight > 0 || this.#queue.size > 0) return
    clearInterval(this.#timer)
    this.#timer = undefined
  }
}
