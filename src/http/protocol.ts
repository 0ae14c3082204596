import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Duplex } from 'node:stream'
import type { FastifyHttpOptions, FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { answerError, ApiError, rawErrorResponse } from '../errors.ts'
import { parseJsonBody } from './json.ts'
import { compileValidator } from './validation.ts'

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
    requireHostHeader: false
  },
  // Fastify's own 503 has another shape, and stopping is announced by `Connection: close` long before.
  return503OnClosing: false,
  routerOptions: { maxParamLength: 1_000 },
  clientErrorHandler: answerClientError,
  frameworkErrors: answerError
} satisfies FastifyHttpOptions<Server>

/** Makes an app exact on the wire. To be called on the root instance before any route is added. */
export function hardenProtocol (app: FastifyInstance): void {
  app.setErrorHandler(answerError)
  app.setValidatorCompiler(compileValidator)
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request: FastifyRequest, body: Buffer, done) => {
    try {
      done(null, parseJsonBody(request, body))
    } catch (error) {
      done(error as Error)
    }
  })

  const methods = new Map<string, string[]>()
  app.addHook('onRoute', ({ url, method }) => {
    methods.set(url, [...new Set([...methods.get(url) ?? [], ...[method].flat()])].sort())
  })
  app.addHook('onRequest', (request: FastifyRequest, reply: FastifyReply, done: HookHandlerDoneFunction) => {
    if (request.headers.host === undefined && request.raw.httpVersion === '1.1') return done(new ApiError('HOST_MISSING'))
    if (!request.is404) return done()
    const path = (request.url.split('?', 1)[0] as string).split('/')
    const known = [...methods.keys()].find((url) => matches(url.split('/'), path))
    if (known === undefined) return done(new ApiError('PATH_UNKNOWN'))
    reply.header('allow', methods.get(known)?.join(', '))
    done(new ApiError('METHOD_NOT_ALLOWED'))
  })

  // For plugins that find nothing at a path of theirs.
  app.setNotFoundHandler((request, reply) => answerError(new ApiError('PATH_UNKNOWN'), request, reply))

  app.server.on('checkExpectation', (_request: IncomingMessage, response: ServerResponse) => {
    endWith(response.socket as Duplex, new ApiError('EXPECTATION_UNKNOWN'))
  })
  app.server.on('connect', (_request: IncomingMessage, socket: Duplex) => {
    endWith(socket, new ApiError('METHOD_NOT_ALLOWED'), { allow: 'GET, HEAD, POST, DELETE' })
  })
}

const matches = (pattern: string[], path: string[]) => pattern.length === path.length &&
  pattern.every((part, index) => part === path[index] || (part.startsWith(':') && path[index] !== ''))

/** An onRequest hook: the router leaves malformed escapes in the query as they are, this refuses them. */
export function refuseMalformedQuery (request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction): void {
  const query = request.url.split('?', 2)[1]
  done(query !== undefined && isMalformed(query) ? new ApiError('URL_MALFORMED') : undefined)
}

function isMalformed (query: string): boolean {
  try {
    decodeURIComponent(query)
    return false
  } catch {
    return true
  }
}

// What Node's parser could not read. An answer written while an earlier
// request of the same connection is being worked on would be taken for that
// request's own, so it waits for it.
function answerClientError (error: Error & { code?: string }, socket: Duplex & { _httpMessage?: ServerResponse | null }): void {
  const response = socket._httpMessage
  if (error.code === 'ECONNRESET' || !socket.writable) socket.destroy()
  else if (response?.req.complete) response.once('close', () => endWith(socket, error))
  else if (response?.headersSent) socket.destroy()
  else endWith(socket, error)
}

function endWith (socket: Duplex, error: Error, headers?: Record<string, string>): void {
  socket.end(rawErrorResponse(error, headers), () => socket.destroy())
}
