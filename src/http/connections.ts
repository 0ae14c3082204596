// How a connection ends: with its last answer read, whatever its caller still sends and whoever ends it.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import { ApiError, errors, overloaded } from '../errors.ts'
import { rawErrorResponse } from './answers.ts'
import { lingerIdleMs, lingerMs, maxBehind } from './limits.ts'

/**
 * To be called on the root instance before any route is added. While the
 * lifecycle is stopping each answer is its connection's last.
 */
export function tendConnections (app: FastifyInstance, lifecycle: { stopping: boolean }): void {
  const behind = new WeakMap<Socket, number>()
  // Before Fastify, which answers some malformed requests without any hook.
  app.server.prependListener('request', (request, response) => {
    if (lifecycle.stopping) response.shouldKeepAlive = false
    const socket: HttpSocket = request.socket
    if (socket._httpMessage === response) return
    const count = (change: number) => behind.set(socket, (behind.get(socket) ?? 0) + change)
    count(1)
    response.once('socket', () => count(-1))
  })
  app.addHook('onRequest', (request, _reply, done) => {
    done(!request.is404 && (behind.get(request.raw.socket) ?? 0) > maxBehind ? overloaded : undefined)
  })

  // A caller that has nothing more to send may still be waiting for its answers.
  Object.assign(app.server, { httpAllowHalfOpen: true })
  const sockets = new Set<HttpSocket>()
  app.server.on('connection', (socket: HttpSocket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
    // What Node calls after the last answer of a connection.
    socket.destroySoon = () => closeGently(socket)
  })
  // What Node calls when the server closes. Its own leaves a connection on which
  // no whole request ever came, and the server would wait for it.
  Object.assign(app.server, {
    closeIdleConnections: () => {
      for (const socket of sockets) {
        if (socket._httpMessage || socket.writableEnded) continue
        // Its request was answered before all of it was there.
        if (socket.parser?.incoming) closeGently(socket)
        else socket.destroy()
      }
    }
  })
  app.addHook('preClose', (done) => {
    // The connection of a request that is still under way would be kept alive after its answer.
    app.server.keepAliveTimeout = 1
    done()
  })
  // Node's own answer has no body; the hook above has one.
  app.server.on('checkExpectation', (request: IncomingMessage, response: ServerResponse) => {
    app.server.emit('request', request, response)
  })
  app.server.on('connect', (_request: IncomingMessage, socket: HttpSocket) => {
    // Node has taken its own listeners off, and answers before this one may be under way.
    socket.on('error', () => socket.destroy()).on('timeout', () => socket.destroy())
    socket.on('drain', () => socket._httpMessage?.emit('drain'))
    answerInTurn(socket, new ApiError(errors.METHOD_NOT_ALLOWED), app.log, { allow: 'GET, HEAD, POST, DELETE' })
  })
}

// How a connection stands is only to be had from Node's own properties.
type HttpSocket = Socket & { _httpMessage?: ServerResponse | null, parser?: { incoming: IncomingMessage | null } | null }

const refused = new WeakSet<Socket>()

/** What Node's parser could not read, or not in time. Of a late request it says so every second. */
export function answerClientError (this: FastifyInstance, error: Error, socket: HttpSocket): void {
  if (refused.has(socket)) return
  refused.add(socket)
  answerInTurn(socket, error, this.log)
}

/**
 * The last answer of a connection. Written while earlier requests are being
 * worked on it would be taken for theirs, so it waits for them; a request that
 * has had its answer, before all of it was there, gets no second one.
 */
function answerInTurn (socket: HttpSocket, error: Error, log: FastifyBaseLogger, headers?: Record<string, string>): void {
  dropInput(socket)
  const response = socket._httpMessage
  if (response && (response.req.complete || response.headersSent)) {
    response.once('close', () => answerInTurn(socket, error, log, headers))
    return
  }
  const isAnswered = !response && socket.parser?.incoming?.complete === false
  if (socket.writable && !isAnswered) socket.write(rawErrorResponse(error, log, socket.remoteAddress, headers))
  closeGently(socket)
}

/**
 * Ends a connection whose caller may still be sending. Closed at once, with
 * bytes on their way, it would be reset, and the answer lost before it is read.
 */
function closeGently (socket: Socket): void {
  if (socket.destroyed) return
  dropInput(socket)
  socket.end()
  socket.setTimeout(lingerIdleMs, () => socket.destroy())
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(timer))
}

/** Whatever still comes is no request: Node gets neither the bytes nor their end. */
function dropInput (socket: Socket): void {
  socket.removeAllListeners('data').removeAllListeners('end')
  socket.on('data', () => {}).resume()
}
