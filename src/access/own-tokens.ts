// The tokens that operators make, as credentials: checked, looked up, remembered for a moment.
import { LRUCache } from 'lru-cache'
import { ApiError, errors } from '../errors.ts'
import { tokenEvents } from '../events.ts'
import type { Authenticate } from './authenticate.ts'
import { hashToken, isWellFormedToken } from './token-format.ts'
import type { Token, Tokens } from './tokens.ts'

/** Tokens remembered, of which the one longest unused goes first. Unknown ones take no place. */
const maxKnown = 10_000

/** A token in use is looked up again when it is so old, by a request that does not wait for it. */
const refreshAfter = 2 / 3

interface LookUp {
  askedAt: number
  answer: Promise<Token | undefined>
}

/**
 * Tokens of this service's own, remembered for `cacheTtlMs` from when the database was asked:
 * what it says was true then, and the answer may take its time.
 */
export function createAuthenticate (tokens: Tokens, cacheTtlMs: number): Authenticate {
  const known = new LRUCache<string, { token: Token, askedAt: number }>({ max: maxKnown })
  const underWay = new Map<string, LookUp>()

  function ask (hash: string): LookUp {
    const askedAt = performance.now()
    const asked = { askedAt, answer: lookUp(hash, askedAt) }
    underWay.set(hash, asked)
    // Nobody waits for a refresh: when it fails the next request asks again.
    asked.answer.catch(() => {})
    return asked
  }

  async function lookUp (hash: string, askedAt: number): Promise<Token | undefined> {
    try {
      const token = await tokens.find(hash, known.peek(hash)?.token)
      if (token === undefined) known.delete(hash)
      else if (askedAt > (known.peek(hash)?.askedAt ?? 0)) known.set(hash, { token, askedAt })
      return token
    } finally {
      if (underWay.get(hash)?.askedAt === askedAt) underWay.delete(hash)
    }
  }

  function current (hash: string): Token | undefined | Promise<Token | undefined> {
    const now = performance.now()
    const remembered = known.get(hash)
    const asked = underWay.get(hash)
    const isRemembered = remembered !== undefined && now - remembered.askedAt < cacheTtlMs
    if (tokenEvents.hasSubscribers) tokenEvents.publish({ isRemembered })
    if (isRemembered) {
      if (asked === undefined && now - remembered.askedAt > refreshAfter * cacheTtlMs) ask(hash)
      return remembered.token
    }
    return (asked !== undefined && now - asked.askedAt < cacheTtlMs ? asked : ask(hash)).answer
  }

  return async (text) => {
    if (!isWellFormedToken(text)) throw new ApiError(errors.TOKEN_INVALID, { cause: 'malformed' })
    const token = await current(hashToken(text))
    if (token === undefined) throw new ApiError(errors.TOKEN_INVALID, { cause: 'unknown' })
    const state = tokenState(token)
    if (state !== 'active') throw new TokenRefused(token, state)
    return token
  }
}

/** Not the caller's, but it was once: the log can say whose. */
class TokenRefused extends ApiError {
  readonly caller: Token

  constructor (token: Token, state: string) {
    super(errors.TOKEN_INVALID, { cause: state })
    this.caller = token
  }
}

/** What the token is good for at this moment, by this machine's clock. */
export function tokenState ({ revoked, expires }: Token): 'active' | 'revoked' | 'expired' {
  if (revoked !== undefined) return 'revoked'
  return expires !== undefined && expires.getTime() <= Date.now() ? 'expired' : 'active'
}
