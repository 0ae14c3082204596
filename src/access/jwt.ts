// Authenticates JWT access tokens of an identity provider (RFC 9068). Loaded only if JWT_ISSUER is set.
import type { FastifyInstance } from 'fastify'
import { jwtVerify, type JWTPayload, type LocalJWKSet } from 'jose'
import { LRUCache } from 'lru-cache'
import type { Config } from '../config.ts'
import { jwtEvents } from '../events.ts'
import type { Authenticate, Identity } from './bearer.ts'
import { createKeys, type Keys } from './jwt-keys.ts'
import { rejectionFor, toRejection } from './jwt-rejections.ts'
import { serveResourceMetadata } from './resource-metadata.ts'
import { hashToken, isPrintable } from './token-format.ts'

const maxTokens = 10_000
/** How long a verified JWT is cached. When the identity provider's keys change, the cache is emptied. */
const cacheMs = 60_000
const clockToleranceSeconds = 30
// Allows only base64url. A decoder skips other characters, so variants of a valid JWT could fill the cache.
const format = /^[\w-]+\.[\w-]+\.[\w-]*$/

interface Entry { identity: Identity, notBefore: number, expires: number, cachedUntil: number }

/** Authenticates JWTs and the service's own tokens. Only JWTs contain a dot. */
export function acceptJwts (
  app: FastifyInstance, guarded: FastifyInstance, config: Config, own: Authenticate
): Authenticate {
  const { JWT_ISSUER, JWT_AUDIENCE, JWT_JWKS_URL: jwksUrl, JWT_KEYS_MAX_AGE: maxAgeMs } = config
  const issuer = JWT_ISSUER as string
  const keys = createKeys({ issuer, jwksUrl, maxAgeMs }, app.log)
  app.addHook('onReady', async () => keys.refresh())
  app.addHook('onClose', async () => keys.close())
  const scopes = new Set<string>()
  guarded.addHook('onRoute', ({ config }) => {
    if (config?.scope !== undefined) scopes.add(config.scope)
  })
  serveResourceMetadata(app, guarded, issuer, JWT_AUDIENCE as string, scopes)
  const authenticate = createJwtAuthenticate(keys, config, scopes)
  return (text, admit) => text.includes('.') ? authenticate(text, admit) : own(text, admit)
}

/** Ignores a JWT's scopes that are not in `scopes`. */
export function createJwtAuthenticate (keys: Keys, config: Config, scopes: Set<string>): Authenticate {
  const cache = new LRUCache<string, Entry>({ max: maxTokens })
  let cachedFor: LocalJWKSet | undefined

  /** Fetches the keys again when `set` lacks the key that signed the JWT. */
  async function verify (text: string, set: LocalJWKSet): Promise<Entry> {
    try {
      const { payload } = await jwtVerify(text, set, {
        issuer: config.JWT_ISSUER as string,
        audience: config.JWT_AUDIENCE as string,
        algorithms: config.JWT_ALGORITHMS,
        typ: config.JWT_TYPE,
        requiredClaims: ['exp'],
        clockTolerance: clockToleranceSeconds
      })
      return toEntry(payload, config, scopes)
    } catch (error) {
      if ((error as { code?: string }).code !== 'ERR_JWKS_NO_MATCHING_KEY') throw error
      const newest = await keys.refetch()
      if (newest === set) throw error
      return verify(text, newest)
    }
  }

  async function find (text: string, admit?: () => void): Promise<Identity> {
    const set = keys.current() ?? await keys.refetch()
    if (set !== cachedFor) cache.clear()
    cachedFor = set
    const hash = hashToken(text)
    const cached = cache.get(hash)
    if (cached !== undefined && performance.now() < cached.cachedUntil) {
      checkTimes(cached)
      jwtEvents.publish({ result: 'cached' })
      return cached.identity
    }
    if (!format.test(text)) throw rejectionFor('malformed')
    if (cached === undefined) admit?.()
    const entry = await verify(text, set)
    // If the keys have changed during `verify`, do not cache: the provider may have withdrawn this JWT's key.
    if (keys.current() === set) cache.set(hash, entry)
    jwtEvents.publish({ result: 'verified' })
    return entry.identity
  }

  return (text, admit) => find(text, admit).catch((error) => {
    const rejection = toRejection(error)
    jwtEvents.publish({ result: rejection.status === 503 ? 'unavailable' : 'rejected' })
    throw rejection
  })
}

/** Checks the times of a cached JWT, which may have expired since jose verified it. */
function checkTimes ({ notBefore, expires }: Entry): void {
  const seconds = Date.now() / 1000
  if (seconds >= expires + clockToleranceSeconds) throw rejectionFor('expired')
  if (seconds < notBefore - clockToleranceSeconds) throw rejectionFor('not_yet_valid')
}

/** Prefixes the user with the issuer, so that a JWT never acts for a user of the service's own tokens. */
function toEntry (payload: JWTPayload, config: Config, known: Set<string>): Entry {
  const name = payload[config.JWT_USER_CLAIM]
  // The claim may be a number, null or an empty string.
  const user = typeof name === 'string' && name !== '' ? `${config.JWT_ISSUER}|${name}` : ''
  if (!isPrintable(user)) throw rejectionFor('user')
  const scopes = readScopes(payload, config.JWT_SCOPE_CLAIM).intersection(known)
  return {
    identity: { user, readOnly: false, scopes },
    notBefore: payload.nbf ?? -Infinity,
    expires: payload.exp as number,
    cachedUntil: performance.now() + cacheMs
  }
}

/** Reads scopes from a space-separated string (RFC 9068, section 2.2.3) or from an array of strings. */
function readScopes (payload: JWTPayload, claim: string | undefined): Set<string> {
  const scopes = claim === undefined ? payload.scope ?? payload.scp : payload[claim]
  return new Set([scopes].flat().flatMap((scope) => typeof scope === 'string' ? scope.split(' ') : []))
}
