// Items that arrive together, or while others are under way, go together as a batch.
import { clientClosedRequest, overloaded } from '../errors.ts'
import { batchEvents, origin, statementEvents } from '../events.ts'
import { FairQueue } from './fair-queue.ts'
import { Schedule } from './drain-scheduler.ts'
import { unresponsiveTicks, tickMs } from '../database/connection.ts'
import { isNotSupported } from '../database/pg-errors.ts'
import type { Waiter } from './concurrency-limiter.ts'

export interface BatcherOptions {
  /** For whoever counts. */
  name: string
  /** The most items of one batch; 1: each is run on its own, and many at once. */
  maxItems: number
  /** How many batches of several may be under way. */
  maxInFlight: number
  /** How many items may wait before further ones are refused; a large one counts by its pieces. */
  maxQueued: number
  /** After which errors of a batch each of its items is run again on its own. */
  isRetryable: (error: unknown) => boolean
  /** Whose items may go now; everybody's without it. Looked at again while nobody may. */
  canRun?: ((owner: string) => boolean) | undefined
}

interface Waiting<Item, Result> {
  item: Item
  /** In characters. */
  size: number
  origin: unknown
  resolve: (result: Result | Promise<Result>) => void
  reject: (error: unknown) => void
}

/**
 * How long a batch that hangs, on a locked row or a dead connection, keeps others from passing. Until that
 * connection is given up: sooner the next one might be sent to the same dead server by another. While others
 * are answered it is a slow server that it waits for, and to send that one more would make it slower.
 */
const turnTicks = unresponsiveTicks + 2

/** How many may be under way where each is run on its own: enough for pipelining. */
const singlesAtOnce = 100

/** The most characters of one batch: a burst of large items is not held in memory several times over. */
const maxSize = 1_000_000

/** From so many characters on an item is large: it takes turns with large ones, no small one waits for it. */
const largeSize = 32_768

/** Of how many characters the pieces of an item are of which each counts as one that waits. */
const pieceSize = 131_072

/**
 * Runs together the items of one turn of the event loop, and those that arrive
 * while `atOnce` batches are under way as the next one. One commit, one round
 * trip and one plan for many rows is what lets writes go beyond the server's
 * rate of single statements: with 64 callers 2.2 times as many creates and 2.7
 * times as many deletes as pipelined one by one.
 *
 * Who waits is taken in an order that is fair among owners. `run` answers its
 * items in order and answers none before their commit. An item that is run again
 * on its own has only its own faults. Where the server can't do a statement of
 * several items, it is asked once: Citus may not, for rows of several owners.
 */
export class Batcher<Item extends Pick<Waiter, 'answer'> & { owner: string }, Result> {
  readonly #run: (items: Item[]) => Promise<Array<Result | Promise<Result>>>
  readonly #sizeOf: (item: Item) => number
  readonly #options: BatcherOptions
  readonly #small: BatchQueue<Waiting<Item, Result>>
  readonly #large: BatchQueue<Waiting<Item, Result>>

  /** `sizeOf`: in characters. */
  constructor (
    run: (items: Item[]) => Promise<Array<Result | Promise<Result>>>,
    sizeOf: (item: Item) => number,
    options: BatcherOptions
  ) {
    this.#run = run
    this.#sizeOf = sizeOf
    this.#options = { ...options }
    if (options.maxItems === 1) this.#runEachOnItsOwn()
    const settle = (group: Array<Waiting<Item, Result>>) => this.#settle(group)
    this.#small = new BatchQueue(settle, this.#options)
    this.#large = new BatchQueue(settle, this.#options)
  }

  /**
   * Rejects with OVERLOADED past `maxWaiting`, one of who has most waiting, or when
   * it waits too long: then the item was in no batch.
   */
  add (item: Item): Promise<Result> {
    return new Promise((resolve, reject) => {
      const size = this.#sizeOf(item)
      const waiting = { item, size, origin: origin.getStore(), resolve, reject }
      const queue = size < largeSize ? this.#small : this.#large
      queue.add(waiting)
    })
  }

  #runEachOnItsOwn (): void {
    Object.assign(this.#options, { maxItems: 1, maxInFlight: singlesAtOnce })
  }

  async #settle (group: Array<Waiting<Item, Result>>): Promise<void> {
    const { name, isRetryable } = this.#options
    if (batchEvents.hasSubscribers) batchEvents.publish({ name, items: group.length })
    const items = group.map(({ item }) => item)
    try {
      const isTraced = statementEvents.hasSubscribers
      const results = await (isTraced ? origin.run(originsOf(group), this.#run, items) : this.#run(items))
      group.forEach(({ resolve }, index) => resolve(results[index] as Result | Promise<Result>))
    } catch (error) {
      if (isNotSupported(error)) this.#runEachOnItsOwn()
      if (group.length > 1 && isRetryable(error)) {
        await Promise.all(group.map((one) => this.#settle([one])))
      } else for (const { reject } of group) reject(error)
    }
  }
}

/** What waits for a batch, so many of which go at a time. */
class BatchQueue<Item extends Waiting<Pick<Waiter, 'answer'> & { owner: string }, never>> {
  readonly #settle: (group: Item[]) => Promise<void>
  readonly #options: BatcherOptions
  readonly #queue: FairQueue<Item>
  readonly #schedule = new Schedule(() => this.#next())
  #underWay = 0
  #answered = 0

  constructor (settle: (group: Item[]) => Promise<void>, options: BatcherOptions) {
    this.#settle = settle
    this.#options = options
    this.#queue = new FairQueue(options.canRun)
  }

  add (waiting: Item): void {
    const { maxInFlight, maxQueued } = this.#options
    const { owner } = waiting.item
    const weight = Math.ceil((waiting.size + 1) / pieceSize)
    while (this.#queue.weight > 0 && this.#queue.weight + weight > maxQueued) {
      const other = this.#queue.evictFromLargest(owner, weight)
      if (other === undefined) return waiting.reject(overloaded)
      other.reject(overloaded)
    }
    this.#queue.add(owner, waiting, weight)
    if (this.#underWay < maxInFlight) this.#schedule.soon()
  }

  #next (): void {
    for (const { reject } of this.#queue.takeExpired()) reject(overloaded)
    while (this.#underWay < this.#options.maxInFlight) {
      const group = this.#take()
      if (group.length === 0) break
      this.#begin(group)
    }
    if (this.#underWay === 0 && this.#queue.weight > 0) this.#schedule.later()
  }

  #begin (group: Item[]): void {
    this.#underWay++
    const turn = Promise.withResolvers<'answered' | 'passed'>()
    let [ticks, answered] = [0, this.#answered]
    const passing = setInterval(() => {
      ticks = this.#answered === answered ? ticks + 1 : 0
      answered = this.#answered
      if (ticks === turnTicks) turn.resolve('passed')
    }, tickMs)
    this.#settle(group).finally(() => turn.resolve('answered'))
    turn.promise.then((end) => {
      clearInterval(passing)
      // The end of one that was passed says nothing of those that came after it.
      if (end === 'answered') this.#answered++
      this.#underWay--
      this.#schedule.soon()
    })
  }

  /** Those whose answers nobody waits for any more take no place. */
  #take (): Item[] {
    const { maxItems } = this.#options
    let items = 0
    let size = 0
    const isWanted = ({ item: { answer } }: Item) => answer === undefined || !answer.destroyed
    const taken = this.#queue.take((waiting) => {
      if (!isWanted(waiting)) return true
      size += waiting.size
      return ++items <= maxItems && (items === 1 || size <= maxSize)
    })
    return taken.filter((waiting) => {
      if (isWanted(waiting)) return true
      waiting.reject(clientClosedRequest)
      return false
    })
  }
}

const originsOf = (group: Array<{ origin: unknown }>) => group.map(({ origin }) => origin)
