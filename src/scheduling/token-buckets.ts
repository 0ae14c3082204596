// Limits the rates of users and of client addresses with token buckets.

export interface Rate { count: number, seconds: number }

/** `left`: whole tokens in the bucket. `refillSeconds`: whole seconds until the bucket gets another token. */
interface Bucket { allowed: boolean, left: number, refillSeconds: number }

/** This many buckets take some 7 MiB. */
const maxKeys = 50_000

/** Times are in units of `#secondsPerToken`. A bucket gets one token per unit, and holds up to `burst`. */
export class TokenBuckets {
  readonly #burst: number
  readonly #secondsPerToken: number
  // Both map a key to the time when its bucket is full. `#now` discards a map when all its buckets are full.
  #recent = new Map<string, number>()
  #older = new Map<string, number>()
  #rotateAt = 0

  constructor ({ count, seconds }: Rate, burst: number) {
    this.#burst = burst
    this.#secondsPerToken = seconds / count
  }

  /** Takes a token unless the bucket is empty. When `maxKeys` buckets exist, a new key has no limit. */
  take (key: string): Bucket {
    const now = this.#now()
    const missing = this.#missing(key, now)
    if (missing > this.#burst - 1) return this.#describe(missing, false)
    const isKnown = this.#recent.has(key) || this.#older.has(key)
    if (isKnown || this.#recent.size + this.#older.size < maxKeys) this.#recent.set(key, now + missing + 1)
    return this.#describe(missing + 1, true)
  }

  peek (key: string): Bucket {
    const missing = this.#missing(key, this.#now())
    return this.#describe(missing, missing <= this.#burst - 1)
  }

  #now (): number {
    const now = performance.now() / 1000 / this.#secondsPerToken
    if (now >= this.#rotateAt) {
      const period = Math.max(this.#burst, 1 / this.#secondsPerToken)
      // If no call came for a whole period, all buckets are full, and both maps are discarded.
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
