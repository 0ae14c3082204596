// Limits the rates of users and of client addresses with token buckets.
import { LRUCache } from 'lru-cache'

export interface Rate { count: number, seconds: number }

/**
 * The returned function takes a token from the bucket of `key`, unless the bucket is empty. With 0 as
 * `tokens`, the function only reads the bucket. A bucket gets one token every `seconds / count`, and holds at
 * most `burst` tokens. Returns the whole tokens that are `left`, and the whole seconds until the next token.
 */
export function createTokenBuckets ({ count, seconds }: Rate, burst: number) {
  const secondsPerToken = seconds / count
  /** Maps a key to the time when its bucket is full, in units of `secondsPerToken`. Takes some 5 MiB. */
  const fullAt = new LRUCache<string, number>({ max: 50_000 })

  return (key: string, tokens: 0 | 1 = 1) => {
    const now = performance.now() / 1000 / secondsPerToken
    let missing = Math.max((fullAt.get(key) ?? 0) - now, 0)
    const allowed = missing <= burst - 1
    if (allowed && tokens > 0) fullAt.set(key, now + (missing += tokens))
    const left = Math.max(Math.floor(burst - missing), 0)
    const refillSeconds = Math.ceil((left + 1 - burst + missing) * secondsPerToken)
    return { allowed, left, refillSeconds }
  }
}
