import { METHODS, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { Readable } from 'node:stream'
import type { FastifyBaseLogger, FastifyHttpOptions, FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { answerError, ApiError, overloaded, rawErrorResponse, type ErrorName } from '../errors.ts'
import { parseJsonBody } from './json.ts'
import { compileValidator } from './validation.ts'

// How long a caller whose connection is at its end may be silent before it is
// cut off, and how long it may take in all to send what it was sending.
const [lingerIdleMs, lingerMs] = [2000, 5000]

// Requests of one connection whose answers wait for that of an earlier one. Node
// works on all that come in one piece, thousands, and each answer waits in memory.
const maxBehind = 16

/** What Fastify and Node need to be told so that no client can hold a connection for ever. */
export const serverOptions = {
  // Node only enforces the timeout of a request when that of its headers is not the longer one.
  requestTimeout: 30_000,
  // A socket on which nothing moves in either direction, a reader that has stalled included.
  connectionTimeout: 60_000,
  // Longer than the idle timeout of the usual balancers, so that they close first.
  keepAliveTimeout: 75_000,
  http: {
    headersTimeout: 15_000,
    connectionsCheckingInterval: 1_000,
    // Checked below: Node's own answer has no body.
    requireHostHeader: false,
    // Node takes the first of two Host, Authorization or Content-Type headers
    // and drops the other; joined, neither passes for what it is not.
    joinDuplicateHeaders: true,
    // A twentieth of a list is setting up, ending and closing the stream of a body that is not there.
    optimizeEmptyRequests: true
  },
  // Fastify's own 503 has another shape, and stopping is announced by `Connection: close` long before.
  return503OnClosing: false,
  routerOptions: { maxParamLength: 1_000 },
  clientErrorHandler: answerClientError,
  frameworkErrors: answerError
} satisfies FastifyHttpOptions<Server>

/**
 * Makes an app exact on the wire. To be called on the root instance before any
 * route is added. While the lifecycle is stopping each answer is its connection's last.
 */
export function hardenProtocol (app: FastifyInstance, lifecycle: { stopping: boolean }): void {
  app.setErrorHandler(answerError)
  app.setValidatorCompiler(compileValidator)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request: FastifyRequest, body: Buffer, done) => {
    done(null, parseJsonBody(request, body))
  })

  // Fastify would wait for the end of a body that has been left out, of which Node tells nobody any more.
  app.addHook('preParsing', ({ headers }: FastifyRequest, _reply, payload, done) => {
    done(null, headers['content-type'] !== undefined && payload.readableEnded ? Readable.from([]) : payload)
  })

  const behind = new WeakMap<Socket, number>()
  // Before Fastify, which answers some malformed requests without any hook.
  app.server.prependListener('request', (request, response) => {
    if (lifecycle.stopping) response.shouldKeepAlive = false
    // Node's parser takes the methods of RTSP, too. The router has no place for
    // them, and would say so at length in the log.
    if (!METHODS.includes(request.method as string)) Object.assign(request, { method: 'GET', url: '#' })
    const socket: HttpSocket = request.socket
    if (socket._httpMessage === response) return
    const count = (change: number) => behind.set(socket, (behind.get(socket) ?? 0) + change)
    count(1)
    response.once('socket', () => count(-1))
  })

  const methods = new Map<string, string[]>()
  app.addHook('onRoute', ({ url, method }) => {
    methods.set(url, [...new Set([...methods.get(url) ?? [], ...[method].flat()])].sort())
  })
  app.addHook('onRequest', (request: FastifyRequest, reply: FastifyReply, done: HookHandlerDoneFunction) => {
    const fault = faultOf(request.raw)
    if (fault !== undefined) return done(new ApiError(fault))
    if (!request.is404) return done((behind.get(request.raw.socket) ?? 0) > maxBehind ? overloaded : undefined)
    const path = segmentsOf(request.url)
    const known = [...methods.keys()].find((url) => matches(url.split('/'), path))
    if (known === undefined) return done(new ApiError('PATH_UNKNOWN'))
    reply.header('allow', methods.get(known)?.join(', '))
    done(new ApiError('METHOD_NOT_ALLOWED'))
  })
  // For plugins that find nothing at a path of theirs, such as a file of /docs.
  app.setNotFoundHandler((request, reply) => answerError(new ApiError('PATH_UNKNOWN'), request, reply))

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
    answerInTurn(socket, new ApiError('METHOD_NOT_ALLOWED'), app.log, { allow: 'GET, HEAD, POST, DELETE' })
  })
}

/** What Node lets pass although a server must not (RFC 9112, sections 2.3, 3.2 and 3.2.4; RFC 9110, section 10.1.1). */
function faultOf ({ httpVersion, url, headers: { host, expect } }: IncomingMessage): ErrorName | undefined {
  if (httpVersion === '1.1') {
    if (host === undefined || host.includes(',')) return 'HOST_MISSING'
    if (expect !== undefined && !/^100-continue$/i.test(expect)) return 'EXPECTATION_UNKNOWN'
  } else if (httpVersion !== '1.0') return 'HTTP_MALFORMED'
  // The router takes it for the end of the path: /plants/1#2 would be plant 1.
  return (url as string).includes('#') ? 'HTTP_MALFORMED' : undefined
}

/** The path as the router reads it: that of an absolute URL, without the query, percent escapes decoded. */
const segmentsOf = (url: string) => (url.replace(/^https?:\/\/[^/?]*/i, '').split('?', 1)[0] as string).split('/').map(decodeURIComponent)

const matches = (pattern: string[], path: string[]) => (pattern.length === path.length || pattern.at(-1) === '*') &&
  pattern.every((part, index) => part === path[index] || (/^[:*]/.test(part) && index < path.length))

/** An onRequest hook: the router leaves malformed escapes in the query as they are, this refuses them. */
export function refuseMalformedQuery (request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction): void {
  const start = request.url.indexOf('?')
  try {
    if (start !== -1) decodeURIComponent(request.url.slice(start))
  } catch {
    return done(new ApiError('URL_MALFORMED'))
  }
  done()
}

// How a connection stands is only to be had from Node's own properties.
type HttpSocket = Socket & { _httpMessage?: ServerResponse | null, parser?: { incoming: IncomingMessage | null } | null }

const refused = new WeakSet<Socket>()

/** What Node's parser could not read, or not in time. Of a late request it says so every second. */
function answerClientError (this: FastifyInstance, error: Error, socket: HttpSocket): void {
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
