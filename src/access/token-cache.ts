// Authenticates the service's own tokens, and caches the tokens that it has found in the database.
import { LRUCache } from 'lru-cache'
import { ApiError, errors } from '../errors.ts'
import { tokenEvents } from '../events.ts'
import { renewal, type Access, type Authenticator } from './bearer.ts'
import { isWellFormedToken } from './token-format.ts'
import { tokenState, type Token, type Tokens } from './tokens.ts'

const maxTokens = 10_000

/** Fractions of the TTL. If a request uses an entry older than `refreshAge`, the entry is refreshed. */
const [refreshAge, refreshInterval] = [2 / 3, 1 / 12]

/** After a check, a request may wait this long for its statement, even with a shorter TTL. */
const minValidMs = 1000

// Malformed and unknown tokens share these errors, because a stack trace for each would take time.
const malformed = new ApiError(errors.TOKEN_INVALID, { cause: 'malformed' })
const unknown = new ApiError(errors.TOKEN_INVALID, { cause: 'unknown' })

interface Entry { token: Token, access: Access, refreshAt: number, expiresAt: number }

/** Accepts a cached token for `ttlMs` after the start of its look-up. */
export function createAuthenticator (tokens: Tokens, ttlMs: number): Authenticator {
  const cache = new LRUCache<string, Entry>({
    max: maxTokens,
    // Keep the entry when its refresh fails. Finish a look-up even when its entry is evicted.
    noDeleteOnFetchRejection: true,
    ignoreFetchAbort: true,
    fetchMethod: async (text, known) => {
      const askedAt = performance.now()
      const token = await tokens.find(text, known?.token)
      if (token === undefined) throw unknown
      const { id, user, readOnly, expires } = token
      const leftMs = (expires?.getTime() ?? Infinity) - Date.now()
      const validUntil = Math.min(askedAt + Math.max(ttlMs, minValidMs), performance.now() + leftMs)
      const access = { id, user, readOnly, validUntil, renew: renewal(check, text) }
      return { token, access, refreshAt: askedAt + refreshAge * ttlMs, expiresAt: askedAt + ttlMs }
    }
  })
  const refreshIntervalMs = refreshInterval * ttlMs
  const lookUp = (text: string) => cache.forceFetch(text, { forceRefresh: true })

  function refreshSoon (text: string, entry: Entry, now: number): void {
    // Refresh an entry only once. If the refresh fails, the entry expires.
    entry.refreshAt = Infinity
    // Start the refresh at the end of the current interval. All refreshes of an interval share a statement.
    setTimeout(() => { lookUp(text).catch(() => {}) }, refreshIntervalMs - now % refreshIntervalMs).unref()
  }

  async function find (text: string, now: number): Promise<Entry> {
    const entry = await lookUp(text)
    // An earlier request may have started this look-up. If the entry has already expired, look up again.
    return entry.expiresAt < now ? lookUp(text) : entry
  }

  async function check (text: string, onMiss: () => void): Promise<Access> {
    const now = performance.now()
    const known = cache.peek(text)
    const hit = known !== undefined && now < known.expiresAt
    if (!isWellFormedToken(text)) throw malformed
    if (known === undefined) onMiss()
    tokenEvents.publish({ hit })
    const { token, access } = hit ? known : await find(text, now)
    const state = tokenState(token)
    if (state === 'active') return access
    // With `identity` the log names the user of a revoked or expired token.
    throw Object.assign(new ApiError(errors.TOKEN_INVALID, { cause: state }), { identity: token })
  }

  return {
    cached (text) {
      const now = performance.now()
      // Unlike `get`, `peek` does not mark the entry as recently used. Only a refresh marks the entry.
      const entry = cache.peek(text)
      if (entry === undefined || now >= entry.expiresAt) return undefined
      if (tokenState(entry.token) !== 'active') return undefined
      tokenEvents.publish({ hit: true })
      if (now >= entry.refreshAt) refreshSoon(text, entry, now)
      return entry.access
    },
    check
  }
}
