// Checks the bearer token of each request, and the scope or write access that a route needs.
import bearerAuth from '@fastify/bearer-auth'
import type { FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { ApiError, errors, scopeMissing } from '../errors.ts'
import { markAuthenticated } from '../http/wire/unauthenticated-throttle.ts'

export interface Identity {
  user: string
  readOnly: boolean
  /** Undefined for the service's own tokens, which have no scopes. */
  scopes?: ReadonlySet<string>
  /** The token's id for the log. Undefined for a JWT. */
  id?: string
}

/**
 * Rejects with TOKEN_INVALID, or with a 503 if the token cannot be checked.
 * Before checking a token that is not cached, calls `admit`, which throws to reject the request.
 */
export type Authenticate = (token: string, admit?: () => void) => Promise<Identity>

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The scope that a JWT needs for this operation. An operation without a scope rejects every JWT. */
    scope?: `${string}:${'read' | 'write'}`
  }
  interface FastifyRequest {
    identity: Identity
    /** Checks the token again if the last check is over 1 s old. Await this before a write or a list page. */
    revalidate: () => Promise<unknown> | undefined
  }
}

const revalidateAfterMs = 1000

/** Checks the token of each request to a route of `app`. Fastify reads the body only after this check. */
export async function requireBearer (
  app: FastifyInstance, authenticate: Authenticate, admit?: (request: FastifyRequest) => void
): Promise<void> {
  async function check (token: string, request: FastifyRequest): Promise<true> {
    const checkedAt = performance.now()
    request.identity = await authenticate(token, admit && (() => admit(request)))
    request.revalidate = () =>
      performance.now() - checkedAt < revalidateAfterMs ? undefined : check(token, request)
    markAuthenticated(request.raw.socket)
    return true
  }
  app.decorateRequest('identity', null as unknown as Identity)
  app.decorateRequest('revalidate', null as unknown as FastifyRequest['revalidate'])
  await app.register(bearerAuth, {
    keys: new Set<string>(),
    // Accept `bearer` as well as `Bearer` (RFC 9110, section 11.1). By default the plugin is case-sensitive.
    specCompliance: 'rfc6749',
    // By default, the plugin responds to errors and logs them. Here, the app's error handler does both.
    addHook: false,
    verifyErrorLogLevel: 'trace',
    auth: check
  })
  app.addHook('onRequest', app.verifyBearerAuth as NonNullable<typeof app.verifyBearerAuth>)
}

/** Runs after requireBearer. Rejects JWTs without the route's scope, and read-only tokens on write routes. */
export function requireScope (
  { identity, routeOptions }: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction
): void {
  const { scope } = routeOptions.config
  if (identity.scopes === undefined) {
    const isForbidden = identity.readOnly && scope?.endsWith(':write')
    return done(isForbidden ? new ApiError(errors.TOKEN_READ_ONLY) : undefined)
  }
  if (scope === undefined) return done(new ApiError(errors.TOKEN_SCOPE_MISSING))
  done(identity.scopes.has(scope) ? undefined : new ApiError(scopeMissing(scope)))
}
