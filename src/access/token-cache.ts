// The tokens that operators make, as credentials: checked, looked up, remembered for a moment.
import { LRUCache } from 'lru-cache'
import { ApiError, errors } from '../errors.ts'
import { tokenEvents } from '../events.ts'
import type { Authenticate } from './authenticate.ts'
import { hashToken, isWellFormedToken } from './token-format.ts'
import type { Token, Tokens } from './tokens.ts'

/** Tokens remembered, of which the one longest not looked up goes first. Unknown ones take no place. */
const maxKnown = 10_000

// Of the time it is remembered: so old a token in use is looked up again, before anybody has to wait for it,
// and together with all others that come to be so old within that time.
const [refreshAfter, refreshWithin] = [2 / 3, 1 / 12]

// One for all, as with `overloaded`: anybody can bring about thousands a second.
const malformed = new ApiError(errors.TOKEN_INVALID, { cause: 'malformed' })
const unknown = new ApiError(errors.TOKEN_INVALID, { cause: 'unknown' })

interface LookUp {
  askedAt: number
  answer: Promise<Token | undefined>
}

/**
 * Tokens of this service's own, remembered for `cacheTtlMs` from when the database was asked:
 * what it says was true then, and the answer may take its time.
 */
export function createAuthenticate (tokens: Tokens, cacheTtlMs: number): Authenticate {
  const cache = new TokenCache(tokens, cacheTtlMs)
  return async (text) => {
    const hash = hashToken(text)
    // One that is remembered was well-formed.
    const token = cache.remembered(hash) ?? (isWellFormedToken(text) ? await cache.find(hash) : null)
    if (token === null) throw malformed
    if (token === undefined) throw unknown
    const state = tokenState(token)
    if (state !== 'active') throw new TokenRefused(token, state)
    return token
  }
}

class TokenCache {
  readonly #tokens: Tokens
  readonly #ttlMs: number
  readonly #known = new LRUCache<string, { token: Token, askedAt: number }>({ max: maxKnown })
  readonly #underWay = new Map<string, LookUp>()
  readonly #toRefresh = new Set<string>()

  constructor (tokens: Tokens, ttlMs: number) {
    this.#tokens = tokens
    this.#ttlMs = ttlMs
  }

  remembered (hash: string): Token | undefined {
    // Which is used tells its refresh: to note it with each request would cost a microsecond.
    const { token, askedAt = -Infinity } = this.#known.peek(hash) ?? {}
    const age = performance.now() - askedAt
    if (age >= this.#ttlMs) return undefined
    if (tokenEvents.hasSubscribers) tokenEvents.publish({ hit: true })
    if (age > refreshAfter * this.#ttlMs && !this.#underWay.has(hash)) this.#refreshSoon(hash)
    return token
  }

  /** Undefined when no such token was ever made. */
  find (hash: string): Promise<Token | undefined> {
    if (tokenEvents.hasSubscribers) tokenEvents.publish({ hit: false })
    const asked = this.#underWay.get(hash)
    const isNew = asked !== undefined && performance.now() - asked.askedAt < this.#ttlMs
    return (isNew ? asked : this.#ask(hash)).answer
  }

  #refreshSoon (hash: string): void {
    if (this.#toRefresh.size === 0) setTimeout(() => this.#refresh(), refreshWithin * this.#ttlMs).unref()
    this.#toRefresh.add(hash)
  }

  #refresh (): void {
    for (const hash of this.#toRefresh) this.#ask(hash)
    this.#toRefresh.clear()
  }

  #ask (hash: string): LookUp {
    const askedAt = performance.now()
    const asked = { askedAt, answer: this.#readHedged(hash, askedAt) }
    this.#underWay.set(hash, asked)
    // Nobody waits for a refresh: when it fails the next request asks again.
    asked.answer.catch(() => {})
    return asked
  }

  async #readHedged (hash: string, askedAt: number): Promise<Token | undefined> {
    try {
      const token = await this.#tokens.find(hash, this.#known.peek(hash)?.token)
      if (token === undefined) this.#known.delete(hash)
      else if (askedAt > (this.#known.peek(hash)?.askedAt ?? 0)) this.#known.set(hash, { token, askedAt })
      return token
    } finally {
      if (this.#underWay.get(hash)?.askedAt === askedAt) this.#underWay.delete(hash)
    }
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
