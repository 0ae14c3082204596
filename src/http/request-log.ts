// Tells how requests end, and logs them, so that an operator can tell who did what.
import type { FastifyBaseLogger, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { isRead } from './request-checks.ts'
import { describeRequest } from './responses.ts'

/** `aborted`: the service cut the response, or the request before the response began. */
type Report = (end: { status: number, ms: number, aborted?: 'service' }) => void

/** Calls `report` when the response has ended, or when the client has left before. `report` may throw. */
export function onEnd (request: FastifyRequest, reply: FastifyReply, report: Report): void {
  // Not `onResponse`: Fastify skips this hook if the client leaves before the end of the response.
  reply.raw.once('close', () => request.server.errorLog.attempt(request.log, () => report({
    // 499, as in nginx's log: the connection ended before the response began.
    status: reply.raw.headersSent ? reply.statusCode : 499,
    ms: reply.elapsedTime,
    // Only the service destroys a response with an error.
    ...reply.raw.errored && { aborted: 'service' }
  })))
}

const isDebug = ({ level }: FastifyBaseLogger) => level === 'debug' || level === 'trace'

/** Logs the requests that `which` (LOG_REQUESTS) selects at `info`, and the others at `debug`. */
export function logRequests (app: FastifyInstance, which: string): void {
  app.addHook('onRequest', (request, reply, done) => {
    const { method, log } = request
    const isSelected = which === 'all' || (which === 'writes' && !isRead(method))
    if (!isSelected && !isDebug(log)) return done()
    onEnd(request, reply, ({ status, ms, aborted }) => {
      // A rejected request changes nothing, nor does a write without a valid token. Errors have own lines.
      const isLogged = isSelected && !request.hasErrorLine && !(status >= 400 && status < 499) &&
        (which === 'all' || request.identity !== null)
      if (!isLogged && !isDebug(request.log)) return
      const fields = describeRequest(request, request.identity)
      const line = { ...fields, status, aborted, ms: Math.round(ms * 1000) / 1000 }
      request.log[isLogged ? 'info' : 'debug'](line, 'request completed')
    })
    done()
  })
}
