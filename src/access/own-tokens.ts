// The tokens that operators make, as credentials: checked, looked up, remembered for a moment.
import { LRUCache } from 'lru-cache'
import { ApiError, errors } from '../errors.ts'
import type { Authenticate } from './authenticate.ts'
import { hashToken, isWellFormedToken } from './token-format.ts'
import type { Token, Tokens } from './tokens.ts'

// More than the look-ups that can be under way, three times the default of
// MAX_WAITING, each of which holds a place: a flood of unknown tokens, which are
// not kept, does not push out the ones in use.
const cacheSize = 10_000

/** Tokens of this service's own, remembered for `cacheTtlMs` after a look-up. */
export function createAuthenticate (tokens: Tokens, cacheTtlMs: number): Authenticate {
  const cache = new LRUCache<string, Token>({
    max: cacheSize,
    ttl: cacheTtlMs,
    fetchMethod: (hash, _stale, { options }) => {
      // What was true when it was asked: the answer may take its time.
      Object.assign(options, { start: performance.now() })
      return tokens.find(hash)
    }
  })
  // To the library a ttl of 0 means for ever, and a look-up under way is good for everybody, however old.
  const find = cacheTtlMs === 0
    ? tokens.find
    : (hash: string) => cache.get(hash) ?? (cache.getRemainingTTL(hash) < 0 ? tokens.find(hash) : cache.fetch(hash))

  return async (text) => {
    if (!isWellFormedToken(text)) throw new ApiError(errors.TOKEN_INVALID, { cause: 'malformed' })
    const token = await find(hashToken(text))
    if (token === undefined) throw new ApiError(errors.TOKEN_INVALID, { cause: 'unknown' })
    const state = tokenState(token)
    if (state !== 'active') throw new ApiError(errors.TOKEN_INVALID, { cause: state })
    return token
  }
}

/** What the token is good for at this moment, by this machine's clock. */
export function tokenState ({ revoked, expires }: Token): 'active' | 'revoked' | 'expired' {
  if (revoked !== undefined) return 'revoked'
  return expires !== undefined && expires.getTime() <= Date.now() ? 'expired' : 'active'
}
