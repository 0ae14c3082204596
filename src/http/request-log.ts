// Logs requests, so that an operator can tell who did what.
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { addressOf } from './responses.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Whether the error log has named this request. */
    hasErrorLine: boolean
  }
}

/** Logs the selected requests at `info`, and the others at `debug`. */
export function logRequests (app: FastifyInstance, which: string): void {
  app.decorateRequest('hasErrorLine', false)
  app.addHook('onRequest', (request, reply, done) => {
    const { method, log } = request
    const isSelected = which === 'all' || (which === 'writes' && method !== 'GET' && method !== 'HEAD')
    if (isSelected || log.level === 'debug' || log.level === 'trace') {
      // Not `onResponse`: Fastify skips this hook if the client leaves before the end of the response.
      reply.raw.once('close', () => {
        // Without a valid token, a request changes nothing.
        const isLogged = isSelected && !request.hasErrorLine && (which === 'all' || request.identity !== null)
        logRequest(request, reply, isLogged ? 'info' : 'debug')
      })
    }
    done()
  })
}

function logRequest (request: FastifyRequest, reply: FastifyReply, level: 'info' | 'debug'): void {
  const { method, routeOptions: { url: route }, identity, log } = request
  log[level]({
    // Log the route's pattern, because the URL may contain a token.
    method,
    route,
    id: integerOf(request),
    // 499, as in nginx's log: the client left before the response began.
    status: reply.raw.headersSent ? reply.statusCode : 499,
    ms: Math.round(reply.elapsedTime * 1000) / 1000,
    user: identity?.user,
    tokenId: identity?.id,
    remoteAddress: addressOf(request)
  }, 'request completed')
}

/** Returns the id that a request names, if it is an integer. Any other text may be a secret. */
function integerOf ({ params, body }: FastifyRequest): string | undefined {
  type Named = { id?: unknown } | undefined
  const id = String((params as Named)?.id ?? (body as Named)?.id)
  return /^-?\d{1,19}$/.test(id) ? id : undefined
}
