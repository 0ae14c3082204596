// Authenticates JWT access tokens of an identity provider (RFC 9068). Loaded only if JWT_ISSUER is set.
import type { FastifyInstance } from 'fastify'
import { decodeProtectedHeader, errors, jwtVerify, type JWTPayload, type LocalJWKSet } from 'jose'
import { LRUCache } from 'lru-cache'
import { jwtEvents } from '../../events.ts'
import { renewal, scopeOf, type Access, type Authenticator } from '../bearer.ts'
import { hashToken } from '../token-format.ts'
import { isPrintable } from '../user-name.ts'
import { createKeys, type Keys } from './keys.ts'
import { rejections, toRejection } from './rejections.ts'
import { serveResourceMetadata } from './resource-metadata.ts'
import type { JwtSettings } from './settings.ts'

const maxTokens = 10_000
/** How long a verified JWT is cached. */
const cacheMs = 60_000
const clockToleranceSeconds = 30
/** How many keys are tried for a JWT that names no key. */
const maxTries = 4
// Allows only base64url. A decoder skips other characters, so variants of a valid JWT could fill the cache.
const format = /^[\w-]+\.[\w-]+\.[\w-]*$/

/** Authenticates JWTs and the service's own tokens. Only JWTs contain a dot. Call before adding routes. */
export function acceptJwts (app: FastifyInstance, settings: JwtSettings, own: Authenticator) {
  const keys = createKeys(settings, app.log)
  app.addHook('onReady', async () => keys.refresh())
  app.addHook('onClose', async () => keys.close())
  const scopes = new Set<string>()
  app.addHook('onRoute', ({ method, url, schema }) => {
    if (schema?.operationId !== undefined) for (const each of [method].flat()) scopes.add(scopeOf(each, url))
  })
  const jwts = createJwtAuthenticator(keys, settings, scopes)
  const authenticator: Authenticator = {
    cached: (text) => (text.includes('.') ? jwts : own).cached(text),
    check: (text, onMiss) => (text.includes('.') ? jwts : own).check(text, onMiss)
  }
  return { authenticator, serveMetadata: () => serveResourceMetadata(app, settings, scopes) }
}

/** Ignores a JWT's scopes that are not in `scopes`. */
export function createJwtAuthenticator (
  keys: Keys, settings: JwtSettings, scopes: Set<string>
): Authenticator {
  /** A JWT is cached until the identity provider's keys change. `set` are the keys that verified the JWT. */
  const cache = new LRUCache<string, { access: Access, set: LocalJWKSet }>({ max: maxTokens })

  const options = {
    issuer: settings.JWT_ISSUER as string,
    audience: settings.JWT_AUDIENCE as string,
    algorithms: settings.JWT_ALGORITHMS.split(',').map((name) => name.trim()),
    typ: settings.JWT_TYPE,
    requiredClaims: ['exp'],
    clockTolerance: clockToleranceSeconds
  }

  /** Fetches the keys again when `set` lacks the key that signed the JWT. */
  async function verify (text: string, set: LocalJWKSet): Promise<{ access: Access, set: LocalJWKSet }> {
    try {
      const { payload } = await jwtVerify(text, set, options).catch(async (error) => {
        if (!(error instanceof errors.JWKSMultipleMatchingKeys)) throw error
        const tries = (await Array.fromAsync(error)).slice(0, maxTries)
          .map((key) => jwtVerify(text, key, options))
        return Promise.any(tries).catch((failed) => {
          throw failed.errors.find((reason: unknown) => !isWrongSignature(reason)) ?? error
        })
      })
      return { access: { ...toAccess(payload, settings, scopes), renew: renewal(check, text) }, set }
    } catch (error) {
      // If the JWT names no key, a key that `set` lacks may have signed the JWT.
      const isUnknownKey = isWrongSignature(error)
        ? decodeProtectedHeader(text).kid === undefined
        : toRejection(error) === rejections.unknown_key
      if (!isUnknownKey) throw error
      const newest = await keys.refetch()
      if (newest === set) throw error
      return verify(text, newest)
    }
  }

  async function check (text: string, onMiss: () => void): Promise<Access> {
    const hash = hashToken(text)
    try {
      const set = keys.current() ?? await keys.refetch()
      if (!format.test(text)) throw rejections.malformed
      if (!cache.has(hash)) onMiss()
      const entry = await verify(text, set)
      cache.set(hash, entry)
      jwtEvents.publish({ result: 'verified' })
      return entry.access
    } catch (error) {
      const rejection = toRejection(error)
      // A JWT that has become invalid counts toward FAILED_AUTH_RATE from now on.
      if (rejection.status === 401) cache.delete(hash)
      // The JWTs that FAILED_AUTH_RATE rejects are not checked.
      if (rejection.status !== 429) {
        jwtEvents.publish({ result: rejection.status === 503 ? 'unavailable' : 'rejected' })
      }
      throw rejection
    }
  }

  return {
    cached (text) {
      const { access, set } = cache.get(hashToken(text)) ?? {}
      if (access === undefined || set !== keys.current() || performance.now() >= access.validUntil) return
      jwtEvents.publish({ result: 'cached' })
      return access
    },

    check
  }
}

const isWrongSignature = (error: unknown) => error instanceof errors.JWSSignatureVerificationFailed

/** Prefixes the user with the issuer, so that a JWT never acts for a user of the service's own tokens. */
function toAccess (payload: JWTPayload, settings: JwtSettings, known: Set<string>): Omit<Access, 'renew'> {
  const name = payload[settings.JWT_USER_CLAIM]
  // The claim may be a number, null or an empty string.
  const user = typeof name === 'string' && name !== '' ? `${settings.JWT_ISSUER}|${name}` : ''
  if (!isPrintable(user)) throw rejections.user
  const scopes = readScopes(payload, settings.JWT_SCOPE_CLAIM).intersection(known)
  const leftMs = ((payload.exp as number) + clockToleranceSeconds) * 1000 - Date.now()
  return { user, readOnly: false, scopes, validUntil: performance.now() + Math.min(cacheMs, leftMs) }
}

/** Reads scopes from a space-separated string (RFC 9068, section 2.2.3) or from an array of strings. */
function readScopes (payload: JWTPayload, claim: string | undefined): Set<string> {
  const scopes = claim === undefined ? payload.scope ?? payload.scp : payload[claim]
  return new Set([scopes].flat().flatMap((scope) => typeof scope === 'string' ? scope.split(' ') : []))
}
