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
  // By their text: whoever is known need not be hashed again. The text is in memory with each request anyway.
  const known = new LRUCache<string, { token: Token, askedAt: number }>({ max: maxKnown })
  const underWay = new Map<string, LookUp>()

  function ask (text: string): LookUp {
    const askedAt = performance.now()
    const asked = { askedAt, answer: lookUp(text, askedAt) }
    underWay.set(text, asked)
    // Nobody waits for a refresh: when it fails the next request asks again.
    asked.answer.catch(() => {})
    return asked
  }

  async function lookUp (text: string, askedAt: number): Promise<Token | undefined> {
    try {
      const token = await tokens.find(hashToken(text), known.peek(text)?.token)
      if (token === undefined) known.delete(text)
      else if (askedAt > (known.peek(text)?.askedAt ?? 0)) known.set(text, { token, askedAt })
      return token
    } finally {
      if (underWay.get(text)?.askedAt === askedAt) underWay.delete(text)
    }
  }

  function remembered (text: string): Token | undefined {
    const entry = known.get(text)
    if (entry === undefined) return undefined
    const age = performance.now() - entry.askedAt
    if (age >= cacheTtlMs) return undefined
    if (age > refreshAfter * cacheTtlMs && !underWay.has(text)) ask(text)
    tell(true)
    return entry.token
  }

  function found (text: string): Promise<Token | undefined> {
    if (!isWellFormedToken(text)) throw new ApiError(errors.TOKEN_INVALID, { cause: 'malformed' })
    tell(false)
    const asked = underWay.get(text)
    const isRecent = asked !== undefined && performance.now() - asked.askedAt < cacheTtlMs
    return (isRecent ? asked : ask(text)).answer
  }

  return async (text) => {
    const token = remembered(text) ?? await found(text)
    if (token === undefined) throw new ApiError(errors.TOKEN_INVALID, { cause: 'unknown' })
    const state = tokenState(token)
    if (state !== 'active') throw new TokenRefused(token, state)
    return token
  }
}

function tell (isRemembered: boolean): void {
  if (tokenEvents.hasSubscribers) tokenEvents.publish({ isRemembered })
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
