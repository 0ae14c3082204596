// What every answer has, and how an error becomes one, whoever found it: a route, Fastify or Node's parser.
import { randomFillSync } from 'node:crypto'
import { isIP } from 'node:net'
import { Readable } from 'node:stream'
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { discardStream } from './wire/discard.ts'
import type { RequestSummary } from './error-log.ts'
import { STATUS_CODES } from './node-http.ts'

// What Fastify, its plugins and Node's HTTP parser call the faults they find.
const foreignFaults: Record<string, ErrorDefinition> = {
  FST_ERR_BAD_URL: errors.URL_MALFORMED,
  FST_ERR_MAX_PARAM_LENGTH: errors.URL_TOO_LONG,
  FST_ERR_NOT_FOUND: errors.PATH_UNKNOWN,
  FST_STATIC_FORBIDDEN_PATH: errors.PATH_UNKNOWN,
  FST_ERR_CTP_BODY_TOO_LARGE: errors.BODY_TOO_LARGE,
  FST_ERR_CTP_INVALID_MEDIA_TYPE: errors.CONTENT_TYPE_UNSUPPORTED,
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: errors.HTTP_MALFORMED,
  FST_BEARER_AUTH_MISSING_AUTHORIZATION_HEADER: errors.TOKEN_MISSING,
  // Our own check throws, so this one is left for schemes other than Bearer.
  FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER: errors.TOKEN_MISSING,
  // A body whose sender has gone: nobody reads the answer, and the log shall not call it our fault.
  ECONNRESET: errors.HTTP_MALFORMED,
  // A long list whose reader has gone before it began.
  ERR_STREAM_PREMATURE_CLOSE: errors.HTTP_MALFORMED,
  ERR_HTTP_REQUEST_TIMEOUT: errors.REQUEST_TIMEOUT,
  HPE_HEADER_OVERFLOW: errors.HEADERS_TOO_LARGE,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: errors.BODY_TOO_LARGE
}

export function toApiError (error: unknown, otherwise: ErrorDefinition): ApiError {
  if (error instanceof ApiError) return error
  const { code = '', statusCode = 500 } = Object(error) as Partial<FastifyError>
  const kind = foreignFaults[code] ?? (statusCode < 500 ? errors.HTTP_MALFORMED : otherwise)
  return new ApiError(kind, { cause: error })
}

/** What every answer has. To be called on the root instance before any route is added. */
export function setStandardHeaders (app: FastifyInstance): void {
  app.addHook('onSend', (request, reply, payload, done) => {
    reply.header('x-request-id', request.id)
    if (!reply.hasHeader('cache-control')) reply.header('cache-control', 'no-store')
    // Fastify adds a charset, of which JSON has none (RFC 8259, section 11).
    if (reply.getHeader('content-type') === 'application/json; charset=utf-8') reply.type('application/json')
    if (request.raw.httpVersion === '1.0' && isOfUnknownLength(reply, payload)) {
      (payload as Readable).destroy()
      return done(new ApiError(errors.HTTP_TOO_OLD))
    }
    done(null, payload)
  })
}

// HTTP/1.0 has no chunks: the end of the connection would be that of the answer, be it cut or whole.
const isOfUnknownLength = (reply: FastifyReply, payload: unknown) =>
  payload instanceof Readable && !reply.hasHeader('content-length')

function askedBy (request: FastifyRequest, fault: ApiError): RequestSummary {
  // A token that was refused is known all the same when it was once good.
  const { user, id } = request.caller ?? (fault as { caller?: Partial<typeof request.caller> }).caller ?? {}
  const { method, routeOptions: { url: route } } = request
  return { method, route, user, tokenId: id, remoteAddress: addressOf(request) }
}

/** Of the addresses that trusted proxies tell the last that is one: a caller may have written anything. */
const addressOf = ({ ip, ips = [ip] }: FastifyRequest) => ips.findLast((address) => isIP(address) !== 0)

/** Fastify's error handler, whoever is at fault. */
export function handleError (error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const fault = toApiError(error, errors.INTERNAL)
  const { status, number, headers, message } = fault
  request.server.errorLog.record(fault, request.log, askedBy(request, fault))
  // Fastify closes the connection after a body it could not take. A caller still
  // sending it would lose the answer.
  if (!request.raw.complete) discardStream(request.raw)
  if (reply.hasHeader('connection') && reply.raw.shouldKeepAlive) reply.header('connection', 'keep-alive')
  // For a malformed URL Fastify runs no hook; with a serializer of its own it adds no charset.
  reply.code(status).headers({ ...headers, 'cache-control': 'no-store', 'x-request-id': request.id })
  reply.type('application/json').serializer(JSON.stringify).send({ error: number, message })
}

/** A whole HTTP response for a socket on which Node found the fault: there is no request to reply to. */
export function rawErrorResponse (
  app: FastifyInstance, error: unknown, remoteAddress?: string, extraHeaders: Record<string, string> = {}
): string {
  const fault = toApiError(error, errors.HTTP_MALFORMED)
  const { status, number, headers, message } = fault
  const id = newRequestId()
  app.errorLog.record(fault, app.log.child({ reqId: id }), { remoteAddress })
  const body = JSON.stringify({ error: number, message })
  const lines = Object.entries({
    ...headers,
    ...extraHeaders,
    date: new Date().toUTCString(),
    'x-request-id': id,
    'cache-control': 'no-store',
    'content-type': 'application/json',
    'content-length': String(body.length),
    connection: 'close'
  }).map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`
}

const random = Buffer.alloc(4096)
let used = random.length

/**
 * 128 random bits, in hexadecimal as those of a trace: never a caller's own, who could choose that of another
 * request. Node's UUIDs are strings of many pieces, which are put together for each answer.
 */
export function newRequestId (): string {
  if (used === random.length) {
    randomFillSync(random)
    used = 0
  }
  used += 16
  return random.toString('hex', used - 16, used)
}
