// Lets web pages of the configured origins call the service (Fetch standard, "CORS protocol").
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'

/** Responds to a preflight request of an allowed origin. Returns false for any other request. */
export type RespondToPreflight = (request: FastifyRequest, reply: FastifyReply, methods: string) => boolean

export function allowOrigins (app: FastifyInstance, list: string): RespondToPreflight {
  const origins = list.split(',').map((origin) => origin.trim())
  const isAllowed = ({ headers: { origin } }: FastifyRequest) => origins.includes(origin as string)

  app.addHook('onSend', (request, reply, payload, done) => {
    const vary = reply.getHeader('vary')
    reply.header('vary', vary === undefined ? 'origin' : `${vary}, origin`)
    if (isAllowed(request)) {
      reply.header('access-control-allow-origin', request.headers.origin)
      reply.header('access-control-expose-headers',
        'WWW-Authenticate, Retry-After, RateLimit, RateLimit-Policy, Link, X-Request-Id')
    }
    done(null, payload)
  })

  return (request, reply, methods) => {
    const {
      'access-control-request-method': wanted, 'access-control-request-headers': headers = ''
    } = request.headers
    if (request.method !== 'OPTIONS' || wanted === undefined || !isAllowed(request)) return false
    reply.headers({
      'access-control-allow-methods': methods,
      // Allow every header: tools add headers of their own to the requests of a page, such as `baggage`.
      'access-control-allow-headers': headers,
      'access-control-max-age': '7200',
      vary: 'access-control-request-headers'
    }).code(204).send()
    return true
  }
}
