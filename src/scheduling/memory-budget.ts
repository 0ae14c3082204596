// A fixed limit for the total memory of large request bodies and long lists. All users share it.
import { finished, type Writable } from 'node:stream'

/** The budget ignores smaller bodies and lists, because the number of connections limits their memory. */
export const inlineBytes = 16_384

/** Collect garbage a second after more than 16 MiB were in use. V8 would not do so in an idle process. */
const [collectBytes, collectMs] = [16_777_216, 1000]

/** Returns the memory to the system. Other collections keep it in V8's pool. This one takes some 60 ms. */
const collectAll = { execution: 'async', flavor: 'last-resort' } as const

/**
 * Each user may hold as much as is still free: a single user half of the total, two users a third each.
 * See docs/design/009-memory-budget-and-tick-limiter.md.
 */
export class MemoryBudget {
  readonly #maxBytes: number
  #peak = 0
  readonly #heldBy = new Map<string, number>()
  #total = 0

  constructor (maxBytes: number) {
    this.#maxBytes = maxBytes
  }

  /** Returns false when the bytes don't fit. The reservation ends when the response ends. */
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
    const isBurst = this.#peak > collectBytes
    this.#peak = 0
    if (isBurst) setTimeout(() => globalThis.gc?.(collectAll), collectMs).unref()
  }
}
