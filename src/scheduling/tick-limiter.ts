// Bounds the expensive work of one iteration of the event loop, so that cheap requests never wait long.
import { FairQueue } from './fair-queue.ts'

/** The work of one tick: some 4 ms of JSON parsing or serialization. */
const maxBytesPerTick = 262_144

/** The work of one user or client address before the next one gets its turn. */
const quantumBytes = 65_536

/** Limits work by its bytes, not by its time: clocks are too coarse, and wrong on a busy machine. */
export class TickLimiter {
  readonly #queue = new FairQueue<() => void>(quantumBytes)
  #spentBytes = 0

  /** Calls `work` at once if the tick's budget allows it, otherwise in a later tick. Keys get fair shares. */
  run (key: string, bytes: number, work: () => void): void {
    if (this.#spentBytes === 0) setImmediate(() => this.#nextTick())
    const charged = () => {
      this.#spentBytes += bytes
      work()
    }
    if (this.#queue.size === 0 && bytes <= this.#left()) charged()
    else this.#queue.add(key, charged, bytes)
  }

  /** Resolves in the tick in which the work may run. */
  turn (key: string, bytes: number): Promise<void> {
    return new Promise((resolve) => this.run(key, bytes, resolve))
  }

  /** Returns Infinity for an unused tick, so that work larger than the budget gets a tick of its own. */
  #left (): number {
    return this.#spentBytes === 0 ? Infinity : maxBytesPerTick - this.#spentBytes
  }

  #nextTick (): void {
    this.#spentBytes = 0
    for (let work; (work = this.#queue.next(this.#left())) !== undefined;) work()
    if (this.#spentBytes > 0) setImmediate(() => this.#nextTick())
  }
}

/** Parsing and serialization for authenticated users. The key is the user. */
export const userWork = new TickLimiter()

/** Work for clients that may be unauthenticated. The key contains the client's address. */
export const clientWork = new TickLimiter()
