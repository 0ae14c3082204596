// The server of the app. Responds to requests that never reach Fastify as a whole, and shuts down.
import type { ServerOptions } from 'node:http'
import type { DropArgument, Socket } from 'node:net'
import type { FastifyInstance, FastifyServerOptions } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { clientWork } from '../../scheduling/tick-limiter.ts'
import { newRequestId } from '../log.ts'
import { isLastRequest } from '../request-checks.ts'
import { rejectRequest, requestCost } from '../responses.ts'
import type { Behavior } from './connection.ts'
import { createServer, type Lifecycle } from './server.ts'

/** Pass the `options` to Fastify, and the app to `attach`. `idleMs` limits a time without traffic. */
export function createAppServer (
  lifecycle: Lifecycle, maxConnections: number, nodeOptions: ServerOptions, idleMs: number
) {
  let app: FastifyInstance
  const behavior: Behavior = {
    // Fastify replaces this function.
    run: () => {},
    isLast: (request) => lifecycle.stopping || isLastRequest(request),
    graceMs: () => server.headersTimeout,
    reject (socket, error, done, response) {
      const reject = () => {
        if (!socket.destroyed) rejectRequest(app, error, socket, response)
        done()
      }
      // The client may be unauthenticated, so client addresses take turns.
      if (response === undefined) clientWork.run(`malformed ${socket.remoteAddress}`, requestCost, reject)
      else reject()
    }
  }
  const { server, connections, shutDown } = createServer(behavior, maxConnections, nodeOptions)

  const options = {
    serverFactory: (run) => {
      behavior.run = run
      return server.setTimeout(idleMs)
    },
    clientErrorHandler: (error, socket) => connections.get(socket as Socket)?.fail(error),
    genReqId: ({ socket }) => {
      const id = newRequestId()
      const connection = connections.get(socket)
      // A request that a test injects has no connection.
      if (connection !== undefined) connection.requestId = id
      return id
    }
  } satisfies FastifyServerOptions

  function attach (instance: FastifyInstance): void {
    app = instance
    app.addHook('preClose', () => shutDown(app.log, lifecycle.forceCloseAt))
    server.on('drop', (data?: DropArgument) => {
      const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
      app.errorLog.record(error, 'connection', app.log, { remoteAddress: data?.remoteAddress })
    })
  }

  return { options, attach }
}
