// Authenticates the service's own tokens, and caches the tokens that it has found in the database.
import { LRUCache } from 'lru-cache'
import { tokenEvents } from '../telemetry-events.ts'
import { rejectionFor, rejections, renewal, type Access, type Authenticator } from './bearer.ts'
import { isWellFormedToken, tokenState, type Token, type Tokens } from './tokens.ts'

interface Entry { access: Token & Access, refreshAt: number, expiresAt: number }

/** Accepts a cached token for `ttlMs` after the start of its look-up. */
export function createAuthenticator (tokens: Tokens, ttlMs: number): Authenticator {
  const cache = new LRUCache<string, Entry>({
    max: 10_000,
    // Keep the entry when its refresh fails. Finish a look-up even when its entry is evicted.
    noDeleteOnFetchRejection: true,
    ignoreFetchAbort: true,
    fetchMethod: async (text, known) => {
      const askedAt = performance.now()
      const token = await tokens.find(text, known?.access)
      if (token === undefined) throw rejections.unknown
      const leftMs = (token.expires?.getTime() ?? Infinity) - Date.now()
      // With a TTL below a second, a checked request may still wait a second for its statement.
      const validUntil = Math.min(askedAt + Math.max(ttlMs, 1000), performance.now() + leftMs)
      const access = { ...token, validUntil, renew: renewal(check, text) }
      return { access, refreshAt: askedAt + 2 / 3 * ttlMs, expiresAt: askedAt + ttlMs }
    }
  })
  const refreshIntervalMs = ttlMs / 12
  const lookUp = (text: string) => cache.forceFetch(text, { forceRefresh: true })

  function refreshSoon (text: string, entry: Entry, now: number): void {
    // Refresh an entry only once. If the refresh fails, the entry expires.
    entry.refreshAt = Infinity
    // Start the refresh at the end of the current interval. All refreshes of an interval share a statement.
    setTimeout(() => { lookUp(text).catch(() => {}) }, refreshIntervalMs - now % refreshIntervalMs).unref()
  }

  async function check (text: string): Promise<Access> {
    if (!isWellFormedToken(text)) throw rejections.malformed
    const now = performance.now()
    let entry = cache.peek(text)
    tokenEvents.publish({ hit: entry !== undefined && now <= entry.expiresAt })
    // An earlier request may have started the look-up. If its entry has already expired, look up again.
    while (entry === undefined || now > entry.expiresAt) entry = await lookUp(text)
    const { access } = entry
    const state = tokenState(access)
    if (state === 'active') return access
    // With `identity` the log names the user of a revoked or expired token.
    throw Object.assign(rejectionFor(state), { identity: access })
  }

  return {
    cached (text) {
      const now = performance.now()
      // Unlike `get`, `peek` does not mark the entry as recently used. Only a refresh marks the entry.
      const entry = cache.peek(text)
      if (entry === undefined || now >= entry.expiresAt || tokenState(entry.access) !== 'active') return
      tokenEvents.publish({ hit: true })
      if (now >= entry.refreshAt) refreshSoon(text, entry, now)
      return entry.access
    },
    isNew: (text) => isWellFormedToken(text) && !cache.has(text),
    check
  }
}
