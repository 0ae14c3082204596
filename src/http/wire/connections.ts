// How a connection ends: with its last answer read, whatever its caller still sends and whoever ends it.
import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { DropArgument, Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors } from '../../errors.ts'
import { rawErrorResponse } from '../responses.ts'
import { lingerIdleMs, reservedDescriptors } from '../limits.ts'
import { lingeringClose, discardInput, type HttpSocket } from './node-internals.ts'
import { serializePipelining } from './pipelining.ts'

interface Lifecycle {
  stopping: boolean
  /** By `performance.now()`: when a stop cuts off what is not whole. */
  forceCloseAt?: number
}

/**
 * To be called on the root instance before any route is added. While the
 * lifecycle is stopping each answer is its connection's last.
 */
export function manageConnections (app: FastifyInstance, lifecycle: Lifecycle): void {
  serializePipelining(app.server)
  // Before Fastify, which answers some malformed requests without any hook.
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
    // Node has taken its own listeners off, and answers before this one may be under way.
    socket.on('error', () => socket.destroy()).on('timeout', () => socket.destroy())
    socket.on('drain', () => socket._httpMessage?.emit('drain'))
    respondLast(app, socket, new ApiError(errors.METHOD_NOT_ALLOWED), { allow: 'GET, HEAD, POST, DELETE' })
  })
}

function enableLingeringClose (server: Server, sockets: Set<HttpSocket>): void {
  Object.assign(server, {
    // A caller that has nothing more to send may still be waiting for its answers.
    httpAllowHalfOpen: true,
    // What Node calls when the server closes. Its own leaves a connection on which
    // no whole request ever came, and the server would wait for it.
    closeIdleConnections: () => {
      for (const socket of sockets) {
        if (socket._httpMessage || socket.writableEnded) continue
        // Its request was answered before all of it was there.
        if (socket.parser?.incoming) lingeringClose(socket)
        else socket.destroy()
      }
    }
  })
  server.on('connection', (socket: HttpSocket) => {
    // What Node calls after the last answer of a connection.
    socket.destroySoon = () => lingeringClose(socket)
  })
}

/**
 * Neither a reader that has stalled, nor a long list that has to wait for those of others, nor
 * a body that doesn't come to its end holds up the stop. A caller can repeat both: at the end they
 * are cut off, so that what is left is what nobody knows the outcome of.
 */
function forceCloseOnShutdown (app: FastifyInstance, sockets: Set<HttpSocket>, lifecycle: Lifecycle): void {
  function hasten (): void {
    const partial = [...sockets].filter(isPartial)
    if (performance.now() < (lifecycle.forceCloseAt ?? Infinity)) {
      for (const socket of partial) if (socket.timeout !== lingerIdleMs) socket.setTimeout(lingerIdleMs)
    } else if (partial.length > 0) {
      app.log.warn({ connections: partial.length }, 'the stop cuts off lists and bodies that are not whole')
      for (const socket of partial) socket.destroy()
    }
  }

  app.addHook('preClose', (done) => {
    // Where the answer has begun it can't say any more that it is its connection's last.
    app.server.keepAliveTimeout = 1
    for (const { _httpMessage: answer } of sockets) if (answer) answer.shouldKeepAlive = false
    hasten()
    const timer = setInterval(hasten, 100)
    app.server.once('close', () => clearInterval(timer))
    done()
  })
}

/** Whether an answer or a body has begun, and not all of it is there. */
function isPartial ({ _httpMessage: answer, writableLength }: HttpSocket): boolean {
  return answer?.headersSent || writableLength > 0 || answer?.req.complete === false
}

/** Node would say 100 Continue before anybody has looked at the headers, and 417 without a body. */
function deferContinue (server: Server, lifecycle: Lifecycle): void {
  function begin (request: IncomingMessage, response: ServerResponse): void {
    const { shouldKeepAlive } = response
    // Without the 100 a caller may send the body or leave it: what comes next nobody could tell
    // (RFC 9110, section 10.1.1).
    response.shouldKeepAlive = false
    // As soon as somebody reads the body. Node does so, too, to drop what is left after the answer.
    request.once('resume', () => {
      if (response.headersSent) return
      response.shouldKeepAlive = shouldKeepAlive && !lifecycle.stopping
      response.writeContinue()
    })
    server.emit('request', request, response)
  }
  server.on('checkContinue', begin).on('checkExpectation', begin)
}

/** Closes further connections as soon as they come. */
export function limitConnections (app: FastifyInstance, mostConnections: number): void {
  app.server.maxConnections = mostConnections
  app.server.on('drop', (data?: DropArgument) => {
    const error = new ApiError(errors.OVERLOADED, { cause: 'too many connections' })
    app.errorLog.record(error, app.log, { remoteAddress: data?.remoteAddress })
  })
  const limit = descriptorLimit()
  if (limit < mostConnections + reservedDescriptors) {
    const wanted = mostConnections + reservedDescriptors
    app.log.warn({ limit, wanted }, 'the limit of open files is too low for MAX_CONNECTIONS')
  }
}

/** How many files and connections the process may have open; NaN where that can't be told. */
function descriptorLimit (): number {
  // Without it the report would look up names.
  const report = Object.assign(process.report, { excludeNetwork: true })
  const { userLimits } = report.getReport() as { userLimits?: { open_files: { soft: number | 'unlimited' } } }
  return Number(userLimits?.open_files.soft)
}

const refused = new WeakSet<Socket>()

/** What Node's parser could not read, or not in time. Of a late request it says so every second. */
export function handleClientError (this: FastifyInstance, error: Error, socket: HttpSocket): void {
  if (refused.has(socket)) return
  refused.add(socket)
  respondLast(this, socket, error)
}

/**
 * The last answer of a connection. Written while earlier requests are being
 * worked on it would be taken for theirs, so it waits for them; a request that
 * has had its answer, before all of it was there, gets no second one.
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
  const isAnswered = !response && socket.parser?.incoming?.complete === false
  if (socket.writable && !isAnswered) {
    socket.write(rawErrorResponse(app, error, socket.remoteAddress, headers))
  }
  lingeringClose(socket)
}
