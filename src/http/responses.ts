// Sets the standard headers, and turns errors of routes, Fastify and Node's parser into responses.
import { STATUS_CODES } from 'node:http'
import { isIP, type Socket } from 'node:net'
import {
  LogController, type FastifyError, type FastifyInstance, type FastifyReply, type FastifyRequest
} from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import { maxBodyBytes } from './json.ts'
import { newRequestId } from './log.ts'
import { isInt64, isInt64Text } from './validation.ts'

// The error codes of Fastify, its plugins and Node's HTTP parser.
const foreignErrors: Record<string, ErrorDefinition> = {
  FST_ERR_CTP_BODY_TOO_LARGE: errors.BODY_TOO_LARGE,
  FST_ERR_CTP_INVALID_MEDIA_TYPE: errors.CONTENT_TYPE_UNSUPPORTED,
  FST_BEARER_AUTH_MISSING_AUTHORIZATION_HEADER: errors.TOKEN_MISSING,
  FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER: errors.TOKEN_MISSING,
  // The client disconnected before the service began to send a long list.
  ERR_STREAM_PREMATURE_CLOSE: errors.HTTP_MALFORMED,
  ERR_HTTP_REQUEST_TIMEOUT: errors.REQUEST_TIMEOUT,
  HPE_HEADER_OVERFLOW: errors.HEADERS_TOO_LARGE,
  HPE_CHUNK_EXTENSIONS_OVERFLOW: errors.BODY_TOO_LARGE
}

export function toApiError (app: FastifyInstance, error: unknown, otherwise: ErrorDefinition): ApiError {
  if (error instanceof ApiError) return error
  const { code = '', statusCode = 500 } = Object(error) as Partial<FastifyError>
  const known = isUnknownMethod(Object(error)) ? errors.METHOD_UNKNOWN : foreignErrors[code]
  const definition = known ?? (statusCode < 500 ? errors.HTTP_MALFORMED : otherwise)
  const { bodyLimit } = app.initialConfig
  const detail = definition === errors.BODY_TOO_LARGE ? `at most ${bodyLimit} bytes` : undefined
  return new ApiError(definition, { detail, cause: error })
}

interface ParserError { code: string, bytesParsed: number, rawPacket: Buffer }

/** Node's parser has the same errors for a malformed request line and for an unknown method. */
const isUnknownMethod = ({ code, bytesParsed, rawPacket }: ParserError) =>
  /^HPE_INVALID_(METHOD|CONSTANT)$/.test(code) && /^[\w-]+ \S+ HTTP\/1\.[01]\r\n/.test(
    rawPacket.toString('latin1', rawPacket.lastIndexOf('\n', bytesParsed) + 1))

export function setStandardHeaders (app: FastifyInstance): void {
  app.addHook('onSend', (request, reply, payload, done) => {
    reply.header('x-request-id', request.id)
    // A proxy could send the next request behind the rest of the body.
    if (!request.raw.complete && maxBodyBytes(request.headers) > 0) reply.header('connection', 'close')
    if (!reply.hasHeader('cache-control')) reply.header('cache-control', 'no-store')
    // Remove the charset that Fastify adds: `application/json` has no such parameter (RFC 8259, section 11).
    if (reply.getHeader('content-type') === 'application/json; charset=utf-8') reply.type('application/json')
    done(null, payload)
  })
}

/** A socket for IPv4 and IPv6 reports the IPv4 address 192.0.2.1 as ::ffff:192.0.2.1. */
const toPlain = (address = '') => address.replace(/^::ffff:(?=\d+\.)/, '')

/** Returns the client's address, as reported by trusted proxies. Skips texts that are not IP addresses. */
export const addressOf = (request: FastifyRequest) =>
  toPlain(request.ips?.findLast((address) => isIP(address) !== 0) ?? request.ip)

/** Returns fields for a log line. The route is a pattern, because the URL may contain a token. */
export function describeRequest (request: FastifyRequest, identity: Partial<FastifyRequest>['identity']) {
  const { method, routeOptions: { url: route }, params, body } = request
  type Named = { id?: unknown } | null | undefined
  const id = (params as Named)?.id ?? (body as Named)?.id
  return {
    method,
    route,
    // Ignore any other value: a text may be a secret, and converting an object of a client may throw. As a
    // text, an id beyond 2^53 stays exact.
    id: isInt64(id) || isInt64Text(id) ? id.toString() : undefined,
    user: identity?.user,
    tokenId: identity?.id,
    remoteAddress: addressOf(request)
  }
}

// Costs in the tick limiter. A tick's budget covers 16 error responses, or starts four requests that have no
// cached token.
const errorCost = 8192
export const requestCost = 32_768

/** Tells the log and the metrics of an error. Returns false, and tells of that, if this fails. */
function reportError (error: ApiError, request: FastifyRequest, further?: object): boolean {
  const { server: { errorLog }, log } = request
  // A report that fails has a line, too.
  request.hasErrorLine = true
  return errorLog.attempt(log, () => {
    // No route without an operation id is shed, except for the files of the reference page.
    const { operationId = 'docs' } = request.routeOptions.schema ?? {}
    const kind = operationId !== 'docs' && request.identity === null ? 'token' : operationId
    // An error about a revoked or expired token carries the token's identity.
    const fields = describeRequest(request, request.identity ?? (error as Partial<FastifyRequest>).identity)
    request.hasErrorLine = errorLog.record(error, kind, log, { ...fields, ...further })
  })
}

/** Reports a list that the service cuts after it has sent the status. */
export class StreamErrors extends LogController {
  override streamError (error: FastifyError, request: FastifyRequest, reply: FastifyReply) {
    const { raw, statusCode: status } = reply
    // The client has left.
    if (raw.errored === null && error.code === 'ERR_STREAM_PREMATURE_CLOSE') return
    const reason = raw.errored ?? error
    raw.destroy(reason)
    reportError(toApiError(request.server, reason, errors.INTERNAL), request, { status, aborted: 'service' })
  }
}

export function handleError (error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  // If a shutdown has cut the request, other errors only follow from this.
  let apiError = toApiError(request.server, reply.raw.errored ?? error, errors.INTERNAL)
  if (!reportError(apiError, request)) apiError = new ApiError(errors.INTERNAL)
  const { status, number, headers, message } = apiError
  reply.code(status).headers({ ...headers, 'cache-control': 'no-store', 'x-request-id': request.id })
  // Set a serializer: otherwise Fastify would add a charset to the content type.
  reply.type('application/json').serializer(JSON.stringify)
  // Fastify would close the connection after each error of a body, even of a complete one.
  if (reply.hasHeader('connection') && reply.raw.getHeader('connection') !== 'close') {
    reply.header('connection', 'keep-alive')
  }
  // Without the tick limiter, a client could keep the event loop busy with rejected requests.
  const client = request.identity?.user ?? addressOf(request)
  userWork.run(`error ${client}`, errorCost, () => { reply.send({ error: number, message }) })
}

/** Tells the log and the metrics of a connection's error before or without a request. */
export function reportConnection (
  app: FastifyInstance, error: ApiError, address?: string, log = app.log
): void {
  const client = { remoteAddress: toPlain(address) }
  app.errorLog.attempt(log, () => app.errorLog.record(error, 'connection', log, client))
}

/** Writes the last response of a connection, for a request that does not reach Fastify. */
export function rejectRequest (app: FastifyInstance, error: ApiError, socket: Socket): void {
  const { status, number, message } = error
  const id = newRequestId()
  reportConnection(app, error, socket.remoteAddress, app.log.child({ reqId: id }))
  const body = JSON.stringify({ error: number, message })
  const headers = {
    ...error.headers,
    date: new Date().toUTCString(),
    'x-request-id': id,
    'cache-control': 'no-store',
    'content-type': 'application/json',
    'content-length': String(body.length),
    connection: 'close'
  }
  const lines = Object.entries(headers).map(([name, value]) => `${name}: ${value}\r\n`)
  socket.write(`HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`)
}
