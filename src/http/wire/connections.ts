// Manages client connections, so that each client can read the last response of its connection.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { DropArgument, Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { clientWork } from '../../scheduling/tick-limiter.ts'
import { rawErrorResponse } from '../responses.ts'
import { discardInput, lingeringClose } from './lingering-close.ts'
import type { HttpSocket } from './node-internals.ts'
import { serializePipelining } from './pipelining.ts'
import { closeOnShutdown, type Lifecycle } from './shutdown.ts'
import { requestBytes } from './unauthenticated-throttle.ts'

/** Call this on the root instance before any route is added. */
export function manageConnections (app: FastifyInstance, lifecycle: Lifecycle, maxConnections: number): void {
  serializePipelining(app.server)
  closeOnShutdown(app, lifecycle)
  deferContinue(app, lifecycle)
  // A client that has closed its sending side may still wait for responses.
  Object.assign(app.server, { maxConnections, httpAllowHalfOpen: true })
  app.server.on('connection', (socket: HttpSocket) => {
    // Node calls this after the last response of a connection.
    socket.destroySoon = () => lingeringClose(socket)
  }).on('drop', (data?: DropArgument) => {
    const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
    app.errorLog.record(error, app.log, { remoteAddress: data?.remoteAddress })
  }).on('connect', (_request: IncomingMessage, socket: HttpSocket) => {
    // For CONNECT Node has removed its own listeners, but earlier responses may still be in flight.
    socket.on('error', () => socket.destroy()).on('timeout', () => socket.destroy())
    socket.on('drain', () => socket._httpMessage?.emit('drain'))
    respondLast(app, socket, new ApiError(errors.METHOD_NOT_ALLOWED), { allow: 'GET, HEAD, POST, DELETE' })
  })
}

// Sends 100 Continue after the header checks. By default, Node sends it before the checks, and responds to
// any other expectation with a 417 without a body.
function deferContinue ({ server }: FastifyInstance, lifecycle: Lifecycle): void {
  function begin (request: IncomingMessage, response: ServerResponse): void {
    const { shouldKeepAlive } = response
    // Without a 100 the client may send the body or skip it: the next bytes are ambiguous (RFC 9110, 10.1.1).
    response.shouldKeepAlive = false
    // 'resume' means that the body is read. After the response Node also resumes, to discard the body.
    request.once('resume', () => {
      if (response.headersSent) return
      response.shouldKeepAlive = shouldKeepAlive && !lifecycle.stopping
      response.writeContinue()
    })
    server.emit('request', request, response)
  }
  server.on('checkContinue', begin).on('checkExpectation', begin)
}

const reported = new WeakSet<Socket>()

/** Handles one error of Node's parser per connection. Node reports a late request again every second. */
export function handleClientError (this: FastifyInstance, error: Error, socket: HttpSocket): void {
  if (reported.has(socket)) return
  reported.add(socket)
  clientWork.run(`malformed ${socket.remoteAddress}`, requestBytes, () => respondLast(this, socket, error))
}

/**
 * Sends the last response of a connection, after the responses to earlier requests. An incomplete request
 * that already has a response gets no second response.
 */
function respondLast (
  app: FastifyInstance, socket: HttpSocket, error: Error, headers?: Record<string, string>
): void {
  discardInput(socket)
  const response = socket._httpMessage
  if (response && (response.req.complete || response.headersSent)) {
    response.once('close', () => respondLast(app, socket, error, headers))
    return
  }
  const hasResponse = !response && socket.parser?.incoming?.complete === false
  if (socket.writable && !hasResponse) {
    socket.write(rawErrorResponse(app, error, socket.remoteAddress, headers))
  }
  lingeringClose(socket)
}
