// The guard: no request gets past it without a token, none that changes something with a read-only one.
import bearerAuth from '@fastify/bearer-auth'
import type { FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { ApiError, errors } from '../errors.ts'
import { markAuthenticated } from '../http/wire/unauthenticated-throttle.ts'
import type { Authenticate, Caller } from './authenticate.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Only set on routes behind requireBearer, and there always. */
    caller: Caller
  }
}

/** Guards every route of the instance: the caller is known before any parameter or body is looked at. */
export async function requireBearer (app: FastifyInstance, authenticate: Authenticate): Promise<void> {
  app.decorateRequest('caller', null as unknown as Caller)
  await app.register(bearerAuth, {
    keys: new Set<string>(),
    // The scheme's name is case-insensitive (RFC 9110, section 11.1), and only so under this setting.
    specCompliance: 'rfc6749',
    // With a hook of its own the plugin would answer, in its own shape, and log nothing.
    addHook: false,
    verifyErrorLogLevel: 'trace',
    auth: async (token: string, request: FastifyRequest) => {
      request.caller = await authenticate(token)
      markAuthenticated(request.raw.socket)
      return true
    }
  })
  app.addHook('onRequest', app.verifyBearerAuth as NonNullable<typeof app.verifyBearerAuth>)
}

/** An onRequest hook for routes that change something, behind requireBearer. */
export function requireWriteAccess (
  request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction
): void {
  done(request.caller.readOnly ? new ApiError(errors.TOKEN_READ_ONLY) : undefined)
}
