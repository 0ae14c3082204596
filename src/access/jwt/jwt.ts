// Authenticates JWT access tokens of an identity provider (RFC 9068), and names the provider to clients
// (RFC 9728). Loaded only if JWT_ISSUER is set.
import { hash } from 'node:crypto'
import type { FastifyInstance } from 'fastify'
import { decodeProtectedHeader, jwtVerify, type JWTPayload, type LocalJWKSet } from 'jose'
import { JWKSMultipleMatchingKeys } from 'jose/errors'
import { LRUCache } from 'lru-cache'
import type { Config } from '../../config.ts'
import { ApiError, errors } from '../../errors.ts'
import { jwtEvents, type JwtRejection } from '../../telemetry-events.ts'
import { rejections, renewal, scopeOf, type Access, type Authenticator } from '../bearer.ts'
import { isPrintable } from '../tokens.ts'
import { createKeys, type Keys } from './keys.ts'

/** How long a verified JWT is cached. */
const cacheMs = 60_000
const clockToleranceSeconds = 30
/** How many keys are tried for a JWT that names no key. */
const maxTries = 4

/** Authenticates JWTs and the service's own tokens. Only JWTs contain a dot. Call before adding routes. */
export function acceptJwts (app: FastifyInstance, settings: Config, own: Authenticator) {
  const keys = createKeys(settings, app.log)
  app.addHook('onReady', async () => keys.refresh())
  app.addHook('onClose', async () => keys.close())
  const scopes = new Set<string>()
  app.addHook('onRoute', ({ method, url, schema }) => {
    if (schema?.operationId !== undefined) scopes.add(scopeOf(method, url))
  })
  const jwts = createJwtAuthenticator(keys, settings, scopes)
  const authenticator: Authenticator = {
    cached: (text) => (text.includes('.') ? jwts : own).cached(text),
    isNew: (text) => (text.includes('.') ? jwts : own).isNew(text),
    check: (text) => (text.includes('.') ? jwts : own).check(text)
  }
  return { authenticator, serveMetadata: () => serveResourceMetadata(app, settings, scopes) }
}

/** If JWT_AUDIENCE is a plain https URL, serves metadata and adds their URL to `WWW-Authenticate` headers. */
export function serveResourceMetadata (app: FastifyInstance, settings: Config, scopes: Set<string>) {
  const { JWT_ISSUER: issuer, JWT_AUDIENCE: resource = '' } = settings
  // In other paths, some characters have a meaning for the router.
  const [, origin, pathname] = /^(https:\/\/[\w.:-]+)((?:\/[\w~-][\w.~-]*)*)\/?$/.exec(resource) ?? []
  if (origin === undefined) return
  const path = `/.well-known/oauth-protected-resource${pathname}`
  const attribute = `resource_metadata="${origin}${path}"`
  app.addHook('onSend', (_request, reply, _payload, done) => {
    const challenge = reply.getHeader('www-authenticate')
    if (challenge !== undefined) reply.header('www-authenticate', `${challenge}, ${attribute}`)
    done()
  })
  app.get(path, async () => ({
    resource,
    authorization_servers: [issuer],
    scopes_supported: [...scopes],
    bearer_methods_supported: ['header']
  }))
}

/** A verified JWT. When the keys are no longer `set`, the JWT must be verified again. */
interface Entry { access: Access, set: LocalJWKSet }

/** Ignores a JWT's scopes that are not in `known`. */
export function createJwtAuthenticator (keys: Keys, settings: Config, known: Set<string>) {
  const cache = new LRUCache<string, Entry>({ max: 10_000 })

  const options = {
    issuer: settings.JWT_ISSUER as string,
    audience: settings.JWT_AUDIENCE as string,
    algorithms: splitList(settings.JWT_ALGORITHMS),
    requiredClaims: ['exp'],
    clockTolerance: clockToleranceSeconds
  }
  // Undefined stands for a JWT without a type. jose's option `typ` allows neither such JWTs nor a list.
  const types = splitList(settings.JWT_TYPE)
    .map((name) => name === 'none' ? undefined : mediaTypeOf(name))

  /** Fetches the keys again when `set` lacks the key that signed the JWT. */
  async function verify (text: string, set: LocalJWKSet): Promise<Entry> {
    try {
      const { payload, protectedHeader } = await jwtVerify(text, set, options).catch(async (error) => {
        if (!(error instanceof JWKSMultipleMatchingKeys)) throw error
        const tries = (await Array.fromAsync(error)).slice(0, maxTries)
          .map((key) => jwtVerify(text, key, options))
        return Promise.any(tries).catch((failed: AggregateError) => {
          throw failed.errors.map(toRejection).find((each) => each !== rejections.signature) ?? error
        })
      })
      const { typ } = protectedHeader
      if (!types.includes(typeof typ === 'string' ? mediaTypeOf(typ) : typ)) throw rejections.type
      return { access: { ...toAccess(payload, text, settings, known), renew: renewal(check, text) }, set }
    } catch (error) {
      const rejection = toRejection(error)
      // If the JWT names no key, a key that `set` lacks may have signed the JWT.
      const isUnknownKey = rejection === rejections.unknown_key ||
        (rejection === rejections.signature && decodeProtectedHeader(text).kid === undefined)
      const newest = isUnknownKey ? await keys.refetch() : set
      if (newest === set) throw rejection
      return verify(text, newest)
    }
  }

  async function check (text: string): Promise<Access> {
    if (!isWellFormed(text)) throw rejections.malformed
    try {
      const entry = await verify(text, keys.current() ?? await keys.refetch())
      cache.set(text, entry)
      jwtEvents.publish({ result: 'verified' })
      return entry.access
    } catch (error) {
      const isInvalid = toRejection(error).status === 401
      // From now on, a JWT that has become invalid counts as new.
      if (isInvalid) cache.delete(text)
      jwtEvents.publish({ result: isInvalid ? 'rejected' : 'unavailable' })
      throw error
    }
  }

  return {
    cached (text: string) {
      const { access, set } = cache.get(text) ?? {}
      if (access === undefined || set !== keys.current() || performance.now() >= access.validUntil) return
      jwtEvents.publish({ result: 'cached' })
      return access
    },
    isNew: (text: string) => isWellFormed(text) && !cache.has(text),
    check
  }
}

const splitList = (list: string) => list.split(',').map((name) => name.trim())

/** RFC 7515, section 4.1.9: a type without a slash omits `application/`. */
const mediaTypeOf = (typ: string) => (typ.includes('/') ? typ : `application/${typ}`).toLowerCase()

/**
 * Allows only base64url, without unused bits in the signature's last character. A decoder ignores other
 * characters and these bits: variants of a valid JWT could fill the cache.
 */
function isWellFormed (text: string): boolean {
  const [, signature] = /^[\w-]+\.[\w-]+\.([\w-]*)$/.exec(text) ?? []
  return signature !== undefined && Buffer.from(signature, 'base64url').toString('base64url') === signature
}

/** Prefixes the user with the issuer, so that a JWT never acts for a user of the service's own tokens. */
function toAccess (
  payload: JWTPayload, text: string, settings: Config, known: Set<string>
): Omit<Access, 'renew'> {
  const name = payload[settings.JWT_USER_CLAIM]
  // The claim may be a number, null or an empty string.
  const user = typeof name === 'string' && name !== '' ? `${settings.JWT_ISSUER}|${name}` : ''
  if (!isPrintable(user)) throw rejections.user
  const { JWT_SCOPE_CLAIM: claim } = settings
  // The scopes are a space-separated string (RFC 9068, section 2.2.3) or an array of strings.
  const granted = [claim === undefined ? payload.scope ?? payload.scp : payload[claim]].flat()
  const names = granted.flatMap((scope) => typeof scope === 'string' ? scope.split(' ') : [])
  const scopes = new Set(names).intersection(known)
  const leftMs = ((payload.exp as number) + clockToleranceSeconds) * 1000 - Date.now()
  const validUntil = performance.now() + Math.min(cacheMs, leftMs)
  return { id: idOf(payload, text), user, readOnly: false, scopes, validUntil }
}

/**
 * Returns `jti`. Without one that a log can show, returns 16 digits of a hash without the signature: with
 * ES256, anyone can compute a second signature from the first.
 */
function idOf ({ jti }: JWTPayload, text: string): string {
  if (typeof jti === 'string' && isPrintable(jti)) return jti
  return hash('sha256', text.slice(0, text.lastIndexOf('.'))).slice(0, 16)
}

/** Maps an error code of jose to a reason. Wrong claims share a code: the name of the claim decides. */
const reasons: Record<string, JwtRejection> = {
  ERR_JOSE_ALG_NOT_ALLOWED: 'algorithm',
  ERR_JOSE_NOT_SUPPORTED: 'malformed',
  ERR_JWKS_MULTIPLE_MATCHING_KEYS: 'unknown_key',
  ERR_JWKS_NO_MATCHING_KEY: 'unknown_key',
  ERR_JWS_INVALID: 'malformed',
  ERR_JWS_SIGNATURE_VERIFICATION_FAILED: 'signature',
  ERR_JWT_EXPIRED: 'expired',
  ERR_JWT_INVALID: 'malformed',
  aud: 'audience',
  exp: 'malformed',
  iat: 'malformed',
  iss: 'issuer',
  nbf: 'not_yet_valid',
  typ: 'type'
}

/** An error that `reasons` does not list concerns the keys. The token may be valid, so the status is 503. */
function toRejection (error: unknown): ApiError {
  if (error instanceof ApiError) return error
  const { code, claim = '' } = error as { code: string, claim?: string }
  const reason = reasons[code] ?? reasons[claim]
  return reason === undefined ? new ApiError(errors.KEYS_UNAVAILABLE, { cause: error }) : rejections[reason]
}
