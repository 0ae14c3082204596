// So many statements on a connection at a time; the others wait for their turn, fair among owners.
import { clientClosedRequest, overloaded } from '../errors.ts'
import { origin } from '../events.ts'
import { FairQueue } from './fair-queue.ts'
import type { ManagedConnection } from '../database/managed-connection.ts'

export interface ConcurrencyLimiterOptions {
  /** How many statements may be sent before the first of them is answered. */
  maxInFlight: number
  /** How many may be sent or wait before others are refused. */
  maxQueued: number
  /** Whose turn may come now; everybody's without it. Looked at again every `tickMs`. */
  canRun?: (owner: string) => boolean
  /** Whether others are served between two answers that keep this process busy, for as long as one took. */
  yieldsBetween?: boolean
}

export interface Waiter {
  /** Absent: nobody in particular. */
  owner?: string
  /** Since when it waits, if it has waited elsewhere before: all its waits together have one bound. */
  since?: number | undefined
  /** For a request that is being answered already. It is never refused: the answer would break off. */
  exemptFromRejection?: boolean
  /** Once it is destroyed nothing is sent any more. */
  answer?: { readonly destroyed: boolean } | undefined
}

interface Waiting { begin: () => void, refuse: () => void }

export class ConcurrencyLimiter {
  readonly #lane: ManagedConnection
  readonly #options: ConcurrencyLimiterOptions
  readonly #queue: FairQueue<Waiting>
  #isPausing = false

  constructor (lane: ManagedConnection, options: ConcurrencyLimiterOptions) {
    this.#lane = lane
    this.#options = options
    this.#queue = new FairQueue(options.canRun)
  }

  /**
   * Does the work, which sends one statement on the connection, when it is its turn. Past
   * `maxWaiting` one is rejected with OVERLOADED: of this owner, or of one who has more waiting.
   */
  run<Result> (work: () => Promise<Result>, waiter: Waiter): Promise<Result> {
    const { owner = '', exemptFromRejection = false, since, answer } = waiter
    if (!exemptFromRejection && !this.#makeRoom(owner)) return Promise.reject(overloaded)
    if (this.#isNext(owner)) return this.#begin(work)
    return new Promise((resolve, reject) => {
      // Whoever makes room begins it: on behalf of the one who waited.
      const from = origin.getStore()
      const begin = () => {
        if (answer?.destroyed) reject(clientClosedRequest)
        else resolve(origin.run(from, () => this.#begin(work)))
      }
      this.#queue.add(owner, { begin, refuse: () => reject(overloaded) }, exemptFromRejection ? 0 : 1, since)
    })
  }

  /** How many statements were sent and are not answered, or wait for their turn. */
  waiting (): number {
    return this.#lane.waiting() + this.#queue.weight
  }

  /** To be called every `tickMs`: a connection that is closed for its silence makes room, too. */
  tick (): void {
    for (const { refuse } of this.#queue.takeExpired()) refuse()
    this.#next()
  }

  /** Whether there is room for one more, if need be after refusing another's. */
  #makeRoom (owner: string): boolean {
    if (this.waiting() < this.#options.maxQueued) return true
    const other = this.#queue.evictFromLargest(owner, 1)
    other?.refuse()
    return other !== undefined
  }

  #isNext (owner: string): boolean {
    const { maxInFlight, canRun } = this.#options
    const isFree = !this.#isPausing && this.#lane.waiting() < maxInFlight
    return isFree && this.#queue.isIdle() && (canRun?.(owner) ?? true)
  }

  #begin<Result> (work: () => Promise<Result>): Promise<Result> {
    const answer = work()
    const next = this.#options.yieldsBetween ? () => this.#pause() : () => this.#next()
    answer.then(next, next)
    return answer
  }

  /** For as long as it takes from now, when nobody has looked at the answer, to the end of this turn. */
  #pause (): void {
    if (this.#queue.isIdle()) return
    const answeredAt = performance.now()
    this.#isPausing = true
    setImmediate(() => setTimeout(() => {
      this.#isPausing = false
      this.#next()
    }, performance.now() - answeredAt))
  }

  #next (): void {
    while (!this.#isPausing && this.#lane.waiting() < this.#options.maxInFlight) {
      const waiting = this.#queue.takeNext()
      if (waiting === undefined) return
      waiting.begin()
    }
  }
}
