// Manages client connections, so that each ends after its client could read the last response.
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { DropArgument, Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { clientWork } from '../../scheduling/tick-limiter.ts'
import { rawErrorResponse } from '../responses.ts'
import { lingerIdleMs, reservedDescriptors } from '../limits.ts'
import { lingeringClose, discardInput, type HttpSocket } from './node-internals.ts'
import { serializePipelining } from './pipelining.ts'
import { requestBytes } from './unauthenticated-throttle.ts'

interface Lifecycle {
  stopping: boolean
  /** The time of `performance.now()` when a shutdown cuts unfinished lists and bodies. */
  forceCloseAt?: number
}

/**
 * Call this on the root instance before any route is added. During a shutdown each
 * response is the last of its connection.
 */
export function manageConnections (app: FastifyInstance, lifecycle: Lifecycle): void {
  serializePipelining(app.server)
  // Listen before Fastify, which responds to some malformed requests without any hook.
  app.server.prependListener('request', (_request, response) => {
    if (lifecycle.stopping) response.shouldKeepAlive = false
  })
  const sockets = new Set<HttpSocket>()
  app.server.on('connection', (socket: HttpSocket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  enableLingeringClose(app.server, sockets)
  forceCloseOnShutdown(app, sockets, lifecycle)
  deferContinue(app.server, lifecycle)
  app.server.on('connect', (_request: IncomingMessage, socket: HttpSocket) => {
    // Node has removed its own listeners, and earlier responses may be in flight.
    socket.on('error', () => socket.destroy()).on('timeout', () => socket.destroy())
    socket.on('drain', () => socket._httpMessage?.emit('drain'))
    respondLast(app, socket, new ApiError(errors.METHOD_NOT_ALLOWED), { allow: 'GET, HEAD, POST, DELETE' })
  })
}

function enableLingeringClose (server: Server, sockets: Set<HttpSocket>): void {
  Object.assign(server, {
    // A client that has sent everything may still wait for responses.
    httpAllowHalfOpen: true,
    // Node calls this when the server closes. Node's own method leaves connections without a
    // complete request open, and the server would wait for them.
    closeIdleConnections: () => {
      for (const socket of sockets) {
        if (socket._httpMessage || socket.writableEnded) continue
        // The response was sent before the request was complete.
        if (socket.parser?.incoming) lingeringClose(socket)
        else socket.destroy()
      }
    }
  })
  server.on('connection', (socket: HttpSocket) => {
    // Node calls this after the last response of a connection.
    socket.destroySoon = () => lingeringClose(socket)
  })
}

/**
 * Cuts unfinished lists and bodies, which clients can repeat: stalled connections soon after the
 * shutdown begins, and all of them at `forceCloseAt`. Requests without a response stay, because a
 * client could not know their outcome.
 */
function forceCloseOnShutdown (app: FastifyInstance, sockets: Set<HttpSocket>, lifecycle: Lifecycle): void {
  function closePartial (): void {
    const partial = [...sockets].filter(isPartial)
    if (performance.now() < (lifecycle.forceCloseAt ?? Infinity)) {
      for (const socket of partial) if (socket.timeout !== lingerIdleMs) socket.setTimeout(lingerIdleMs)
    } else if (partial.length > 0) {
      app.log.warn({ connections: partial.length }, 'the shutdown cuts unfinished lists and bodies')
      for (const socket of partial) socket.destroy()
    }
  }

  app.addHook('preClose', (done) => {
    // A response that has begun cannot announce any more that it is the last of its connection.
    app.server.keepAliveTimeout = 1
    for (const { _httpMessage: response } of sockets) if (response) response.shouldKeepAlive = false
    closePartial()
    const timer = setInterval(closePartial, 100)
    app.server.once('close', () => clearInterval(timer))
    done()
  })
}

/** Whether a response or a body has begun and is not complete. */
function isPartial ({ _httpMessage: response, writableLength }: HttpSocket): boolean {
  return response?.headersSent || writableLength > 0 || response?.req.complete === false
}

/** Node would send 100 Continue before the headers are checked, and 417 without a body. */
function deferContinue (server: Server, lifecycle: Lifecycle): void {
  function begin (request: IncomingMessage, response: ServerResponse): void {
    const { shouldKeepAlive } = response
    // Without the 100 a client may send the body or not, so the next bytes are ambiguous
    // (RFC 9110, section 10.1.1).
    response.shouldKeepAlive = false
    // Send it when the body is read. Node also reads the body to discard it after the response.
    request.once('resume', () => {
      if (response.headersSent) return
      response.shouldKeepAlive = shouldKeepAlive && !lifecycle.stopping
      response.writeContinue()
    })
    server.emit('request', request, response)
  }
  server.on('checkContinue', begin).on('checkExpectation', begin)
}

/** Closes further connections at once. */
export function limitConnections (app: FastifyInstance, maxConnections: number): void {
  app.server.maxConnections = maxConnections
  app.server.on('drop', (data?: DropArgument) => {
    const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
    app.errorLog.record(error, app.log, { remoteAddress: data?.remoteAddress })
  })
  const limit = descriptorLimit()
  if (limit < maxConnections + reservedDescriptors) {
    const wanted = maxConnections + reservedDescriptors
    app.log.warn({ limit, wanted }, 'the limit of open files is too low for MAX_CONNECTIONS')
  }
}

/** Returns how many files and connections the process may open; NaN when unknown. */
function descriptorLimit (): number {
  // Without this option the report would look up host names.
  const report = Object.assign(process.report, { excludeNetwork: true })
  const { userLimits } = report.getReport() as { userLimits?: { open_files: { soft: number | 'unlimited' } } }
  return Number(userLimits?.open_files.soft)
}

const reported = new WeakSet<Socket>()

/** Handles errors of Node's parser, which reports a late request every second. */
export function handleClientError (this: FastifyInstance, error: Error, socket: HttpSocket): void {
  if (reported.has(socket)) return
  reported.add(socket)
  clientWork.run(`malformed ${socket.remoteAddress}`, requestBytes, () => respondLast(this, socket, error))
}

/**
 * Sends the last response of a connection. It waits for the responses to earlier requests,
 * because the client would take it for one of them. An incomplete request that has its
 * response gets no second one.
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
