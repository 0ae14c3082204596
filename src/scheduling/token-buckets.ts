// Token buckets by key: the rate limits of users and of client addresses.

/** The setting `6000/m` means a count of 6000 in 60 seconds. */
export interface Rate { count: number, seconds: number }

/** `left`: the whole tokens in the bucket. `refillSeconds`: the whole seconds until it has one more. */
interface Bucket { allowed: boolean, left: number, refillSeconds: number }

/** Bounds the memory to some 7 MiB. */
const maxKeys = 50_000

/** The unit of time is the refill of one token: an empty bucket is full again after `burst` units. */
export class TokenBuckets {
  readonly #burst: number
  readonly #secondsPerToken: number
  // The time at which each bucket is full again. The older map is discarded when all its buckets are full,
  // so that many new keys cannot evict a bucket that is not yet full.
  #recent = new Map<string, number>()
  #older = new Map<string, number>()
  #rotateAt = 0

  constructor ({ count, seconds }: Rate, burst: number) {
    this.#burst = burst
    this.#secondsPerToken = seconds / count
  }

  /** Takes a token unless the bucket is empty. While there are `maxKeys` buckets, a new key has no limit. */
  take (key: string): Bucket {
    const now = this.#now()
    const missing = this.#missing(key, now)
    if (missing > this.#burst - 1) return this.#describe(missing, false)
    const isKnown = this.#recent.has(key) || this.#older.has(key)
    if (isKnown || this.#recent.size + this.#older.size < maxKeys) this.#recent.set(key, now + missing + 1)
    return this.#describe(missing + 1, true)
  }

  /** Describes the bucket without taking a token. */
  peek (key: string): Bucket {
    const missing = this.#missing(key, this.#now())
    return this.#describe(missing, missing <= this.#burst - 1)
  }

  #now (): number {
    const now = performance.now() / 1000 / this.#secondsPerToken
    if (now >= this.#rotateAt) {
      const period = Math.max(this.#burst, 1 / this.#secondsPerToken)
      // After a whole period without a call the buckets of both maps are full.
      this.#older = now < this.#rotateAt + period ? this.#recent : new Map()
      this.#recent = new Map()
      this.#rotateAt = now + period
    }
    return now
  }

  #missing (key: string, now: number): number {
    return Math.max((this.#recent.get(key) ?? this.#older.get(key) ?? 0) - now, 0)
  }

  #describe (missing: number, allowed: boolean): Bucket {
    const left = Math.max(Math.floor(this.#burst - missing), 0)
    const refillSeconds = Math.ceil((left + 1 - this.#burst + missing) * this.#secondsPerToken)
    return { allowed, left, refillSeconds }
  }
}
