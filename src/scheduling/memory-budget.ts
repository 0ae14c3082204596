// Limits the memory that the large request bodies and long lists of all users take together.
import { finished, type Writable } from 'node:stream'

/** The budget ignores bodies and lists up to this size: the number of connections limits their memory. */
export const inlineBytes = 16_384

/** After a peak of over 16 MiB, collect garbage once all is free for 5 s. An idle V8 collects nothing. */
const [collectBytes, collectMs] = [16_777_216, 5000]

/**
 * After a reservation, the user holds at most as many bytes as are still free for all users. See
 * docs/design/009-memory-budget-and-tick-limiter.md.
 */
export class MemoryBudget {
  readonly #maxBytes: number
  #peak = 0
  #collection: NodeJS.Timeout | undefined
  readonly #heldBy = new Map<string, number>()
  #total = 0

  constructor (maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** Returns false when the bytes do not fit. The reservation ends when the response ends. */
  reserve (user: string, bytes: number, response: Writable): boolean {
    const held = this.#heldBy.get(user) ?? 0
    if (held + bytes > this.#maxBytes - this.#total - bytes) return false
    this.#change(user, bytes)
    finished(response, () => this.#change(user, -bytes))
    return true
  }

  #change (user: string, bytes: number): void {
    const held = (this.#heldBy.get(user) ?? 0) + bytes
    if (held === 0) this.#heldBy.delete(user)
    else this.#heldBy.set(user, held)
    this.#total += bytes
    this.#peak = Math.max(this.#peak, this.#total)
    clearTimeout(this.#collection)
    if (this.#total > 0 || this.#peak <= collectBytes) return
    this.#collection = setTimeout(() => {
      this.#peak = 0
      // With these options, a collection takes some 60 ms and returns memory to the system.
      void globalThis.gc?.({ execution: 'async', flavor: 'last-resort' })
    }, collectMs).unref()
  }
}
