// Authenticates tokens through a cache of look-ups.
import { LRUCache } from 'lru-cache'
import { ApiError, errors } from '../errors.ts'
import { tokenEvents } from '../events.ts'
import type { Authenticate } from './bearer.ts'
import { hashToken, isWellFormedToken } from './token-format.ts'
import { tokenState, type Token, type Tokens } from './tokens.ts'

const maxTokens = 10_000

/** In parts of the TTL. */
const [refreshAge, refreshInterval] = [2 / 3, 1 / 12]

// Clients can cause thousands of these errors a second. A shared instance saves their stack traces.
const malformed = new ApiError(errors.TOKEN_INVALID, { cause: 'malformed' })
const unknown = new ApiError(errors.TOKEN_INVALID, { cause: 'unknown' })

interface Entry { token: Token, refreshAt: number, expiresAt: number }

/** Serves each token from memory for `ttlMs`, counted from the start of its look-up. */
export function createAuthenticate (tokens: Tokens, ttlMs: number): Authenticate {
  const cache = createCache(tokens, ttlMs)
  const refreshIntervalMs = refreshInterval * ttlMs
  const lookUp = (hash: string) => cache.forceFetch(hash, { forceRefresh: true })

  function refreshSoon (hash: string, entry: Entry, now: number): void {
    // An entry is refreshed once. If that fails, the entry expires, and the next request looks the token up.
    entry.refreshAt = Infinity
    // Refreshes start together at the end of an interval, to share a statement.
    setTimeout(() => lookUp(hash).catch(() => {}), refreshIntervalMs - now % refreshIntervalMs).unref()
  }

  async function find (hash: string, now: number): Promise<Entry> {
    const entry = await lookUp(hash)
    // A look-up that began more than `ttlMs` before this request is too old for it.
    return entry.expiresAt < now ? lookUp(hash) : entry
  }

  return async (text, admit) => {
    const hash = hashToken(text)
    const now = performance.now()
    // Unlike `get`, `peek` records no use. The refreshes of a token in use keep it from eviction.
    const cached = cache.peek(hash)
    const hit = cached !== undefined && now < cached.expiresAt
    if (!hit && !isWellFormedToken(text)) throw malformed
    if (cached === undefined) admit?.()
    tokenEvents.publish({ hit })
    if (hit && now >= cached.refreshAt) refreshSoon(hash, cached, now)
    const { token } = hit ? cached : await find(hash, now)
    const state = tokenState(token)
    if (state === 'active') return token
    // The log names the user of a token that is no longer valid.
    throw Object.assign(new ApiError(errors.TOKEN_INVALID, { cause: state }), { identity: token })
  }
}

function createCache (tokens: Tokens, ttlMs: number): LRUCache<string, Entry> {
  return new LRUCache({
    max: maxTokens,
    // A failed refresh keeps the entry. An eviction does not fail the requests that await a look-up.
    noDeleteOnFetchRejection: true,
    ignoreFetchAbort: true,
    fetchMethod: async (hash, known) => {
      const askedAt = performance.now()
      const token = await tokens.find(hash, known?.token)
      if (token === undefined) throw unknown
      return { token, refreshAt: askedAt + refreshAge * ttlMs, expiresAt: askedAt + ttlMs }
    }
  })
}
