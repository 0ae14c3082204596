// Logs requests, so that an operator can tell who did what.
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { describeRequest } from './responses.ts'

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
      reply.raw.on('close', () => {
        // Without a valid token, a request changes nothing.
        const isLogged = isSelected && !request.hasErrorLine && (which === 'all' || request.identity !== null)
        logRequest(request, reply, isLogged ? 'info' : 'debug')
      })
    }
    done()
  })
}

function logRequest (request: FastifyRequest, reply: FastifyReply, level: 'info' | 'debug'): void {
  request.log[level]({
    ...describeRequest(request, request.identity),
    // 499, as in nginx's log: the client left before the response began.
    status: reply.raw.headersSent ? reply.statusCode : 499,
    ms: Math.round(reply.elapsedTime * 1000) / 1000
  }, 'request completed')
}
