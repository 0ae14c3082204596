// The server of the app. Responds to input that never reaches Fastify, and logs what a shutdown cuts.
import type { IncomingMessage, ServerOptions, ServerResponse } from 'node:http'
import type { DropArgument } from 'node:net'
import type { FastifyInstance, FastifyServerOptions } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { newRequestId } from '../log.ts'
import { isLastRequest, isRead } from '../request-checks.ts'
import { rejectRequest, reportConnection, toApiError } from '../responses.ts'
import { createServer, type Lifecycle } from './server.ts'

declare module 'node:http' {
  /** The id of a request that has reached Fastify. */
  interface IncomingMessage { id?: string }
}

/** The database may have stored the write, but the client gets no response. */
const isUncertainWrite = ({ headersSent, req: { id, complete, method } }: ServerResponse) =>
  id !== undefined && complete && !headersSent && !isRead(method)

/** Pass the `options` to Fastify, and the app to `attach`. `idleMs` limits a time without traffic. */
export function createAppServer (
  lifecycle: Lifecycle, maxConnections: number, nodeOptions: ServerOptions, idleMs: number
) {
  let app: FastifyInstance
  let httpServer: ReturnType<typeof createServer>

  const options = {
    serverFactory (run) {
      const isLast = (request: IncomingMessage) => lifecycle.stopping || isLastRequest(request)
      httpServer = createServer({ run, isLast }, maxConnections, nodeOptions)
      return httpServer.server.setTimeout(idleMs)
    },
    clientErrorHandler (error, socket) {
      const apiError = toApiError(app, error, errors.HTTP_MALFORMED)
      httpServer.connections.get(socket)?.fail(apiError, () => rejectRequest(app, apiError, socket))
    },
    genReqId: (request) => (request.id = newRequestId())
  } satisfies FastifyServerOptions

  async function shutDown (): Promise<void> {
    const cut = await httpServer.shutDown(lifecycle.forceCloseAt)
    const writes = cut.filter((response) => response && isUncertainWrite(response)) as ServerResponse[]
    for (const { req: { id: reqId } } of writes) {
      app.log.warn({ reqId }, 'the shutdown cuts a write: its outcome is unknown')
    }
    const connections = cut.length - writes.length
    if (connections > 0) app.log.warn({ connections }, 'the shutdown cuts unfinished reads and bodies')
  }

  function attach (instance: FastifyInstance): void {
    app = instance
    app.addHook('preClose', shutDown)
    httpServer.server.on('drop', (data?: DropArgument) => {
      const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
      reportConnection(app, error, data?.remoteAddress)
    })
  }

  return { options, attach }
}
