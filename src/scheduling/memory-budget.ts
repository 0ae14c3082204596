// One fixed limit for the memory of large request bodies and long lists together. Users share it.
import { finished, type Writable } from 'node:stream'

/** Bodies and lists up to this size are not counted: the number of connections bounds them. */
export const inlineBytes = 16_384

/** The service collects garbage after a burst, because an idle process would keep the memory. */
const [collectBytes, collectMs] = [16_777_216, 1000]

/** Any other collection keeps the freed pages in a pool of the process. This one takes some 60 ms. */
const collectAll = { execution: 'async', flavor: 'last-resort' } as const

/**
 * Each user may hold as much as is still free: one user gets half of the total, two get a third each.
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

  /** False when the bytes don't fit. They are released when the response ends. */
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
