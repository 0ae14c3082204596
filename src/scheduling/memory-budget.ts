// Limits the memory that long lists and files of /docs take together. Collects garbage after a peak of
// memory, because an idle V8 collects nothing.
import { finished, type Writable } from 'node:stream'

/** Shared first pages up to this size need no reservation: MAX_CONNECTIONS limits them. */
export const inlineBytes = 16_384

/** A peak of more bytes leaves enough garbage for a collection. */
const peakBytes = 16_777_216

/**
 * After a reservation, the user holds at most as many bytes as are still free for all users. See
 * docs/design/009-memory-budget-and-tick-limiter.md.
 */
export class MemoryBudget {
  readonly #maxBytes: number
  #peak = 0
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
    if (this.#total > 0) return
    if (this.#peak > peakBytes) collectSoon()
    this.#peak = 0
  }
}

let timer: NodeJS.Timeout | undefined

/** Collects garbage five seconds after the last call. Call this at the end of a peak. */
function collectSoon (): void {
  clearTimeout(timer)
  // With these options, a collection takes some 60 ms and returns memory to the system.
  const collect = () => { void globalThis.gc?.({ execution: 'async', flavor: 'last-resort' }) }
  timer = setTimeout(collect, 5000).unref()
}
