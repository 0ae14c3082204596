// A pause after a failure. Each further failure doubles the pause, and a success ends it.
import { setTimeout as delay } from 'node:timers/promises'

const [minPauseMs, maxPauseMs] = [25, 400]

export class Backoff {
  #pauseMs = minPauseMs
  #until = -Infinity
  #error: unknown

  /** The error that began the pause. Undefined when there is no pause. */
  get error (): unknown {
    return performance.now() < this.#until ? this.#error : undefined
  }

  /** Resolves at the end of the pause. */
  async end (): Promise<void> {
    await delay(Math.max(0, this.#until - performance.now()), undefined, { ref: false })
  }

  /** During a pause, further failures change nothing: several attempts may fail together. */
  fail (error: unknown): void {
    if (this.error !== undefined) return
    this.#error = error
    this.#until = performance.now() + this.#pauseMs
    this.#pauseMs = Math.min(2 * this.#pauseMs, maxPauseMs)
  }

  succeed (): void {
    this.#pauseMs = minPauseMs
    this.#until = -Infinity
  }
}
