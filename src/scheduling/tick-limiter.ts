// Limits the expensive work in one iteration of the event loop (a tick), so that cheap requests can run.
import { FairQueue } from './fair-queue.ts'

/** The most work in one tick. Parsing or serializing this many bytes of JSON takes some 2 ms. */
const maxBytesPerTick = 131_072

/** How much work of one user or client address runs before the next user or address gets a turn. */
const quantumBytes = 65_536

/** Limits bytes, not time: clocks are too coarse, and on a busy machine even short work takes long. */
export class TickLimiter {
  readonly #queue = new FairQueue<() => void>()
  /** How many bytes of work this tick may still run. The first work of a tick may have any size. */
  #left = Infinity

  /** Calls `work` in this tick if the limit allows it, otherwise later. Each key gets a fair share. */
  run (key: string, bytes: number, work: () => void): void {
    if (this.#left === Infinity) setImmediate(() => this.#nextTick())
    const charged = () => {
      this.#left = Math.min(this.#left, maxBytesPerTick) - bytes
      work()
    }
    if (this.#queue.size === 0 && bytes <= this.#left) charged()
    else this.#queue.add(key, charged, bytes / quantumBytes)
  }

  /** Resolves in the tick in which the work may run. */
  turn (key: string, bytes: number): Promise<void> {
    return new Promise((resolve) => this.run(key, bytes, resolve))
  }

  #nextTick (): void {
    this.#left = Infinity
    for (let work; (work = this.#queue.next(this.#left / quantumBytes)) !== undefined;) work()
    if (this.#left < Infinity) setImmediate(() => this.#nextTick())
  }
}

/** The key is the user, or the address of a client that may be unauthenticated. */
export const userWork = new TickLimiter()
