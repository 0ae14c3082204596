// Manages client connections. Closes each connection in a way that lets the client read the last response.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { DropArgument, Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { collectSoon } from '../../scheduling/memory-budget.ts'
import { clientWork } from '../../scheduling/tick-limiter.ts'
import { rawErrorResponse, requestCost } from '../responses.ts'
import { closeOnShutdown, discardInput, lingeringClose, type Lifecycle } from './closing.ts'
import type { HttpSocket } from './node-internals.ts'
import { serializePipelining } from './pipelining.ts'
import { limitBodyPieces, limitReads } from './reads.ts'

/** This many closed connections leave enough garbage for a collection. */
const manyConnections = 1000

export function manageConnections (app: FastifyInstance, lifecycle: Lifecycle, maxConnections: number): void {
  app.server.on('connection', serializePipelining)
  limitBodyPieces(app.server, limitReads(app.server))
  const sockets = new Set<HttpSocket>()
  closeOnShutdown(app, lifecycle, sockets)
  deferContinue(app, lifecycle)
  // With `httpAllowHalfOpen`, a client that has closed its sending side still gets its responses.
  Object.assign(app.server, { maxConnections, httpAllowHalfOpen: true })
  let peak = 0
  app.server.on('connection', (socket: HttpSocket) => {
    peak = Math.max(peak, sockets.add(socket).size)
    socket.once('close', () => {
      sockets.delete(socket)
      if (peak - sockets.size < manyConnections) return
      peak = sockets.size
      collectSoon()
    })
    // Node calls `destroySoon` after the last response of a connection.
    socket.destroySoon = () => lingeringClose(socket)
  }).on('drop', (data?: DropArgument) => {
    const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
    app.errorLog.record(error, 'connection', app.log, { remoteAddress: data?.remoteAddress })
  })
}

// Sends `100 Continue` only after the header checks. By default, Node would send it before the checks. Also
// handles an unknown `Expect` header: Node's own response would be a 417 without a body.
function deferContinue ({ server }: FastifyInstance, lifecycle: Lifecycle): void {
  function begin (request: IncomingMessage, response: ServerResponse): void {
    const { shouldKeepAlive } = response
    // Close the connection unless the service sends a 100. Without a 100, the next bytes could be the body or
    // a new request (RFC 9110, section 10.1.1).
    response.shouldKeepAlive = false
    // Send a 100 when Fastify starts to read the body, not when Node discards it after the response.
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

/** Handles only the first error of a connection. Node repeats a request's timeout error every second. */
export function handleClientError (this: FastifyInstance, error: Error, socket: HttpSocket): void {
  if (reported.has(socket)) return
  reported.add(socket)
  clientWork.run(`malformed ${socket.remoteAddress}`, requestCost, () => respondLast(this, socket, error))
}

/** Sends an error after all earlier responses, unless the request that failed already has a response. */
function respondLast (app: FastifyInstance, socket: HttpSocket, error: Error): void {
  discardInput(socket)
  const response = socket._httpMessage
  if (response && (response.req.complete || response.headersSent)) {
    response.once('close', () => respondLast(app, socket, error))
    return
  }
  const hasResponse = !response && socket.parser?.incoming?.complete === false
  if (socket.writable && !hasResponse) socket.write(rawErrorResponse(app, error, socket.remoteAddress))
  lingeringClose(socket)
}
