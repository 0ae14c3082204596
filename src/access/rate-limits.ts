// Limits the requests of each user, and the invalid tokens of each address, with token buckets.
import { isIPv6 } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { LRUCache } from 'lru-cache'
import type { Rate } from '../config.ts'
import { ApiError, errors, overloaded, retryAfter } from '../errors.ts'

const rateLimited = new ApiError(errors.RATE_LIMITED)
const addressLimited = new ApiError(errors.ADDRESS_LIMITED)

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

/** Call this after the token check. Sets the headers of draft-ietf-httpapi-ratelimit-headers-11. */
export function limitUsers (app: FastifyInstance, rate: Rate, burst = Math.ceil(rate.count / rate.seconds)) {
  const take = createTokenBuckets(rate, burst)
  const policy = `"user";q=${burst};w=${Math.ceil(burst * rate.seconds / rate.count)}`
  app.addHook('onRequest', (request, reply, done) => {
    const { allowed, left, refillSeconds } = take(request.identity.user)
    reply.header('ratelimit-policy', policy)
    reply.header('ratelimit', `"user";r=${left};t=${refillSeconds}`)
    done(allowed ? undefined : retryAfter(rateLimited, refillSeconds))
  })
}

/** Calls `check` for a token from the address. Rejects a new token if the address may send no more. */
export type LimitGuesses = <Result>(
  address: string, isNew: () => boolean, check: () => Promise<Result>) => Promise<Result>

/** How long a new token may wait for the checks of others. */
const maxWaitMs = 5000

/**
 * Counts the invalid tokens of each address. While an address may send n further ones, at most n of its new
 * tokens are checked at a time, because all may be invalid. Others wait: valid tokens do not count.
 */
export function limitFailedAuth (rate: Rate): LimitGuesses {
  const take = createTokenBuckets(rate, rate.count)
  /** Each network has requests that check a new token, and requests that wait for these checks. */
  const networks = new Map<string, { requests: number, checking: number, waiting: Array<() => void> }>()

  return (address, isNew, check) => {
    const network = networkOf(address)
    const state = networks.get(network) ?? { requests: 0, checking: 0, waiting: [] }
    networks.set(network, state)
    state.requests++
    const deadline = performance.now() + maxWaitMs
    let isCounted = false

    function mayStart (): boolean {
      const { allowed, left, refillSeconds } = take(network, 0)
      if (!allowed) throw retryAfter(addressLimited, refillSeconds)
      if (performance.now() > deadline) throw overloaded
      return state.checking < left
    }

    async function checkInTurn () {
      // While the token waits, another request may find the same token valid.
      while (isNew() && !isCounted) {
        isCounted = mayStart()
        if (!isCounted) await new Promise<void>((resolve) => { state.waiting.push(resolve) })
      }
      if (isCounted) state.checking++
      return check()
    }

    return checkInTurn().catch((error: ApiError) => {
      if (error.name === 'TOKEN_INVALID') take(network)
      throw error
    }).finally(() => {
      if (isCounted) state.checking--
      state.waiting.shift()?.()
      if (--state.requests === 0) networks.delete(network)
    })
  }
}

/** Shortens an IPv6 address to its /64 prefix, because one client may use all addresses with this prefix. */
function networkOf (address: string): string {
  if (!isIPv6(address)) return address
  const { hostname } = new URL(`http://[${address.replace(/%.*/, '')}]`)
  const compressed = hostname.slice(1, -1)
  const zeros = '0:'.repeat(8 - compressed.split(':').filter(Boolean).length)
  return compressed.replace('::', `:${zeros}`).split(':').filter(Boolean).slice(0, 4).join(':')
}
