// Logs requests, so that an operator can tell who did what.
import type { FastifyInstance } from 'fastify'
import { isRead } from './request-checks.ts'
import { describeRequest } from './responses.ts'

declare module 'fastify' {
  interface FastifyRequest {
    /** Whether the error log has a line of this request, or omits it because the request changed nothing. */
    hasErrorLine: boolean
  }
}

/** Logs the requests that `which` (LOG_REQUESTS) selects at `info`, and the others at `debug`. */
export function logRequests (app: FastifyInstance, which: string): void {
  app.decorateRequest('hasErrorLine', false)
  app.addHook('onRequest', (request, reply, done) => {
    const { method, log } = request
    const isSelected = which === 'all' || (which === 'writes' && !isRead(method))
    if (!isSelected && log.level !== 'debug' && log.level !== 'trace') return done()
    // Not `onResponse`: Fastify skips this hook if the client leaves before the end of the response.
    reply.raw.on('close', () => {
      // 499, as in nginx's log: the client left before the response began.
      const status = reply.raw.headersSent ? reply.statusCode : 499
      // A rejected request changes nothing, nor does a write without a valid token. Errors have own lines.
      const isLogged = isSelected && !request.hasErrorLine && !(status >= 400 && status < 499) &&
        (which === 'all' || request.identity !== null)
      const ms = Math.round(reply.elapsedTime * 1000) / 1000
      const fields = { ...describeRequest(request, request.identity), status, ms }
      request.log[isLogged ? 'info' : 'debug'](fields, 'request completed')
    })
    done()
  })
}
