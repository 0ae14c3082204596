// Checks the bearer token of each request, and the scope or write access that a route needs.
import bearerAuth from '@fastify/bearer-auth'
import type { FastifyInstance, onRequestHookHandler, onRouteHookHandler } from 'fastify'
import { ApiError, errors, scopeMissing, tokenExpired } from '../errors.ts'
import { jwtRejections, type JwtRejection } from '../telemetry-events.ts'
import { isRead } from '../http/request-checks.ts'
import { addressOf, requestCost } from '../http/responses.ts'
import type { Identity } from '../scheduling/batcher.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import type { LimitGuesses } from './rate-limits.ts'

/** What a valid token allows. The requests with a cached token share this object. */
export interface Access extends Identity {
  readOnly: boolean
  /** Undefined for the service's own tokens, which have no scopes. */
  scopes?: ReadonlySet<string>
  /** The token's id for the log. */
  id: string
}

export interface Authenticator {
  /** Returns undefined unless the token is cached and valid. */
  cached: (token: string) => Access | undefined
  /** Whether the token is well-formed and was not found valid before. Such a token may be a guess. */
  isNew: (token: string) => boolean
  /** Rejects with TOKEN_INVALID, or with a 503 if the token cannot be checked. */
  check: (token: string) => Promise<Access>
}

/** Returns the method `renew` for a token's access. */
export const renewal = (check: Authenticator['check'], token: string) => async function (this: Access) {
  Object.assign(this, await check(token))
}

export const rejectionFor = (cause: string) => cause === 'expired'
  ? new ApiError(tokenExpired, { cause, detail: 'it has expired' })
  : new ApiError(errors.TOKEN_INVALID, { cause })

// All rejections for one reason share an error. A new error for each would spend time on a stack trace.
export const rejections = Object.fromEntries(['unknown', ...jwtRejections].map((cause) =>
  [cause, rejectionFor(cause)])) as Record<'unknown' | JwtRejection, ApiError>

declare module 'fastify' {
  interface FastifyRequest {
    /** Null until the request's token is found valid. */
    identity: Access
  }
}

/**
 * Sets the identity of requests with cached valid tokens. Other requests wait for their turn. `app` must be
 * the root instance; call this before adding other hooks. Returns a function that requires a valid token for
 * each route of an instance. `paths` are the health probes: each address has a separate fair share for them,
 * because an attacker may have the address of a load balancer.
 */
export function createBearer (
  app: FastifyInstance, { cached, isNew, check }: Authenticator, paths: string[], limitGuesses?: LimitGuesses
) {
  app.decorateRequest('identity', null, [])

  app.addHook('onRequest', (request, _reply, done) => {
    const [, token = ''] = /^bearer +([^ ].*)$/i.exec(request.headers.authorization ?? '') ?? []
    const access = cached(token)
    if (access !== undefined) {
      request.identity = access
      return done()
    }
    const kind = paths.includes(request.routeOptions.url as string) ? 'probe' : 'request'
    userWork.run(`${kind} ${addressOf(request)}`, requestCost, () => {
      if (!request.raw.socket.destroyed) done()
    })
  })

  // Fastify reads the body only after this check.
  return async (guarded: FastifyInstance) => {
    await guarded.register(bearerAuth, {
      keys: new Set<string>(),
      // Accept `bearer` as well as `Bearer` (RFC 9110, section 11.1), unlike the plugin's default.
      specCompliance: 'rfc6749',
      // By default, the plugin responds to errors and logs them. Here, the app's error handler does both.
      addHook: false,
      verifyErrorLogLevel: 'trace',
      async auth (token, request) {
        request.identity = limitGuesses === undefined
          ? await check(token)
          : await limitGuesses(addressOf(request), () => isNew(token), () => check(token))
        return true
      }
    })
    const verify = guarded.verifyBearerAuth as NonNullable<typeof guarded.verifyBearerAuth>
    // For a cached token, skip the plugin: each of its promises would take time.
    guarded.addHook('onRequest', (request, reply, done) =>
      request.identity === null ? verify(request, reply, done) : done())
  }
}

/** Returns the scope that a JWT needs, such as `books:write` for a DELETE of `/books/:id`. */
export const scopeOf = (method: string | string[], url: string) =>
  `${url.split('/')[1]}:${[method].flat().every(isRead) ? 'read' : 'write'}`

/** Makes a route reject JWTs without its scope, and read-only tokens if it writes. Needs the identity. */
export const requireScope: onRouteHookHandler = (route) => {
  const scope = scopeOf(route.method, route.url)
  const isWrite = scope.endsWith(':write')
  const check: onRequestHookHandler = ({ identity }, _reply, done) => {
    if (identity.readOnly && isWrite) return done(new ApiError(errors.TOKEN_READ_ONLY))
    done(identity.scopes?.has(scope) === false ? new ApiError(scopeMissing(scope)) : undefined)
  }
  route.onRequest = [route.onRequest ?? [], check].flat()
}
