// Limits the rates of users and of client addresses with token buckets.
import { LRUCache } from 'lru-cache'

export interface Rate { count: number, seconds: number }

/** `left`: whole tokens in the bucket. `refillSeconds`: whole seconds until the bucket gets another token. */
interface Bucket { allowed: boolean, left: number, refillSeconds: number }

/** The most recently used keys keep their buckets. This many buckets take some 5 MiB. */
const maxKeys = 50_000

/** Times are in units of `#secondsPerToken`. A bucket gets one token per unit, and holds up to `burst`. */
export class TokenBuckets {
  readonly #burst: number
  readonly #secondsPerToken: number
  /** Maps a key to the time when its bucket is full. */
  readonly #fullAt = new LRUCache<string, number>({ max: maxKeys })

  constructor ({ count, seconds }: Rate, burst: number) {
    this.#burst = burst
    this.#secondsPerToken = seconds / count
  }

  /** Takes a token unless the bucket is empty. With 0 as `count`, only reads the bucket. */
  take (key: string, count: 0 | 1 = 1): Bucket {
    const now = performance.now() / 1000 / this.#secondsPerToken
    let missing = Math.max((this.#fullAt.get(key) ?? 0) - now, 0)
    const allowed = missing <= this.#burst - 1
    if (allowed && count > 0) this.#fullAt.set(key, now + (missing += count))
    const left = Math.max(Math.floor(this.#burst - missing), 0)
    const refillSeconds = Math.ceil((left + 1 - this.#burst + missing) * this.#secondsPerToken)
    return { allowed, left, refillSeconds }
  }
}
