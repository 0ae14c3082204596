// Bounds the expensive work of one iteration of the event loop, so that cheap requests never wait long.
import { FairQueue } from './fair-queue.ts'

/** The work of one tick: some 4 ms of JSON parsing or serialization. */
const maxBytesPerTick = 262_144

/** What each user or client address may do before the others get their turn. */
const quantumBytes = 65_536

/** Charges work by its bytes before the work starts. Clocks are too coarse, and wrong on a busy machine. */
export class TickLimiter {
  readonly #queue = new FairQueue<() => void>(quantumBytes)
  #spentBytes = 0

  /** Calls `work` at once while this tick has budget left, otherwise in a later tick, fair by `key`. */
  run (key: string, bytes: number, work: () => void): void {
    if (this.#spentBytes === 0) setImmediate(() => this.#nextTick())
    const charged = () => {
      this.#spentBytes += bytes
      work()
    }
    if (this.#queue.size === 0 && bytes <= this.#left()) charged()
    else this.#queue.add(key, charged, bytes)
  }

  /** Resolves when the work may be done, in the same tick. */
  turn (key: string, bytes: number): Promise<void> {
    return new Promise((resolve) => this.run(key, bytes, resolve))
  }

  /** Work beyond the budget of a tick has a tick of its own. */
  #left (): number {
    return this.#spentBytes === 0 ? Infinity : maxBytesPerTick - this.#spentBytes
  }

  #nextTick (): void {
    this.#spentBytes = 0
    for (let work; (work = this.#queue.next(this.#left())) !== undefined;) work()
    if (this.#spentBytes > 0) setImmediate(() => this.#nextTick())
  }
}

/** Bodies and pages of users, by user. */
export const userWork = new TickLimiter()

/** Work for clients that may be unauthenticated, by client address. */
export const clientWork = new TickLimiter()
