// The server of the app. Responds to requests that never reach Fastify as a whole, and shuts down.
import type { IncomingMessage, ServerOptions } from 'node:http'
import type { DropArgument, Socket } from 'node:net'
import type { FastifyInstance, FastifyServerOptions } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { inlineBytes } from '../../scheduling/memory-budget.ts'
import { clientWork, TickLimiter } from '../../scheduling/tick-limiter.ts'
import { maxBodyBytes } from '../json.ts'
import { newRequestId } from '../log.ts'
import { isLastRequest } from '../request-checks.ts'
import { rejectRequest, requestCost, toApiError } from '../responses.ts'
import type { Behavior, Reject } from './client-connection.ts'
import { createServer, type Lifecycle } from './server.ts'

/** A separate limiter, so that probes and error responses do not wait behind large bodies. */
const largeBodies = new TickLimiter()
/** 16 requests with large bodies start in a tick. */
const startCost = 8192

/** Large bodies of a thousand connections may arrive in one tick, so their clients take turns. */
const largeInTurn = (run: Behavior['run']): Behavior['run'] => (request, response) => {
  const { headers, headers: { authorization = '' } } = request
  if (maxBodyBytes(headers) <= inlineBytes) return run(request, response)
  // The token is not checked yet. Behind a proxy, all clients have one address.
  const token = authorization.slice(authorization.lastIndexOf(' ') + 1)
  largeBodies.run(token, startCost, () => {
    if (!request.socket.destroyed) run(request, response)
  })
}

/** Pass the `options` to Fastify, and the app to `attach`. `idleMs` limits a time without traffic. */
export function createAppServer (
  lifecycle: Lifecycle, maxConnections: number, nodeOptions: ServerOptions, idleMs: number
) {
  let app: FastifyInstance
  let httpServer: ReturnType<typeof createServer>

  const rejectionOf = (error: ApiError, socket: Socket): Reject => (done) => {
    // The client may be unauthenticated, so client addresses take turns.
    clientWork.run(`malformed ${socket.remoteAddress}`, requestCost, () => {
      if (!socket.destroyed) rejectRequest(app, error, socket)
      done()
    })
  }

  const options = {
    serverFactory (run) {
      const isLast = (request: IncomingMessage) => lifecycle.stopping || isLastRequest(request)
      httpServer = createServer({ run: largeInTurn(run), isLast }, maxConnections, nodeOptions)
      return httpServer.server.setTimeout(idleMs)
    },
    clientErrorHandler (error: Error & { code?: string }, socket: Socket) {
      const connection = httpServer.connections.get(socket)
      const apiError = toApiError(app, error, errors.HTTP_MALFORMED)
      const rejection = rejectionOf(apiError, socket)
      if (error.code === 'ERR_HTTP_REQUEST_TIMEOUT') connection?.expire(apiError, rejection)
      else connection?.fail(apiError, rejection)
    },
    genReqId ({ socket }) {
      const id = newRequestId()
      const connection = httpServer.connections.get(socket)
      // A request that a test injects has no connection.
      if (connection !== undefined) connection.requestId = id
      return id
    }
  } satisfies FastifyServerOptions

  function attach (instance: FastifyInstance): void {
    app = instance
    app.addHook('preClose', () => httpServer.shutDown(app.log, lifecycle.forceCloseAt))
    httpServer.server.on('connect', (_request, socket: Socket) => {
      const rejection = rejectionOf(new ApiError(errors.METHOD_UNKNOWN), socket)
      httpServer.connections.get(socket)?.refuseTunnel(rejection)
    }).on('drop', (data?: DropArgument) => {
      const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
      app.errorLog.attempt(app.log, () =>
        app.errorLog.record(error, 'connection', app.log, { remoteAddress: data?.remoteAddress }))
    })
  }

  return { options, attach }
}
