// Guards routes with bearer tokens.
import bearerAuth from '@fastify/bearer-auth'
import type { FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { ApiError, errors, scopeMissing } from '../errors.ts'
import { markAuthenticated } from '../http/wire/unauthenticated-throttle.ts'

export interface Identity {
  user: string
  readOnly: boolean
  /** Undefined for the service's own tokens, which have no scopes. */
  scopes?: ReadonlySet<string>
  /** Identifies the token in the log. */
  id?: string
}

/**
 * Rejects with TOKEN_INVALID and a cause for the log, or with a 503 when it cannot tell.
 * Calls `admit` before it looks up or verifies a token that is not cached. `admit` may throw.
 */
export type Authenticate = (token: string, admit?: () => void) => Promise<Identity>

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The scope that a JWT needs for this operation. Without one the operation rejects every JWT. */
    scope?: `${string}:${'read' | 'write'}`
  }
  interface FastifyRequest {
    identity: Identity
    /** Authenticates again after a second. Await it before each effect: tokens may be revoked meanwhile. */
    revalidate: () => Promise<unknown> | undefined
  }
}

const revalidateAfterMs = 1000

/** Guards every route of the instance. Authentication precedes all reading of parameters and bodies. */
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
    // RFC 9110, section 11.1: the scheme's name is case-insensitive. The plugin's default is case-sensitive.
    specCompliance: 'rfc6749',
    // The plugin's own hook would send and log errors in another format.
    addHook: false,
    verifyErrorLogLevel: 'trace',
    auth: check
  })
  app.addHook('onRequest', app.verifyBearerAuth as NonNullable<typeof app.verifyBearerAuth>)
}

/** An onRequest hook. Register it behind requireBearer. */
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
