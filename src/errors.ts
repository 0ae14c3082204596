import { STATUS_CODES } from 'node:http'
import { Type } from '@sinclair/typebox'
import type { FastifyBaseLogger, FastifyError, FastifyReply, FastifyRequest } from 'fastify'

const bearer = (attributes = '') => ({ 'www-authenticate': `Bearer realm="plants"${attributes}` })
const later = { 'retry-after': '1' }

/**
 * Every error this service answers. The number is the HTTP status times 100
 * plus a running number; callers rely on it, so a number is never reused.
 */
export const catalogue = {
  HTTP_MALFORMED: { number: 40001, message: 'The request is not well-formed HTTP/1.1.' },
  URL_MALFORMED: { number: 40002, message: 'The URL has a malformed percent escape.' },
  HOST_MISSING: { number: 40003, message: 'An HTTP/1.1 request needs one Host header.' },
  CONTENT_TYPE_UNSUPPORTED: { number: 40004, message: 'The body must be application/json in UTF-8.' },
  CONTENT_ENCODING_UNSUPPORTED: { number: 40005, message: 'The body must not have a content encoding.' },
  BODY_TOO_LARGE: { number: 40006, message: 'The body is larger than this service accepts.' },
  BODY_NOT_UTF8: { number: 40007, message: 'The body is not valid UTF-8.' },
  BODY_NOT_JSON: { number: 40008, message: 'The body is not valid JSON.' },
  BODY_KEY_FORBIDDEN: { number: 40009, message: 'The body must not have a key "__proto__".' },
  BODY_NOT_OBJECT: { number: 40010, message: 'The body must be a JSON object with id, name and optionally tag.' },
  FIELD_MISSING: { number: 40011, message: 'A required field is missing.' },
  FIELD_INVALID: { number: 40012, message: 'A field has a wrong value.' },
  ID_OUT_OF_RANGE: { number: 40013, message: 'id must be from -9223372036854775808 to 9223372036854775807.' },
  ID_TAKEN: { number: 40014, message: 'You already have a plant with this id.' },
  PATH_ID_INVALID: { number: 40015, message: 'The id in the path must be a decimal integer from -9223372036854775808 to 9223372036854775807.' },
  LIMIT_INVALID: { number: 40016, message: 'limit must be a decimal integer from 0 to 2147483647, given once.' },
  BODY_TOO_COMPLEX: { number: 40017, message: 'The body must not have more than 1000 values.' },
  TOKEN_MISSING: { number: 40101, message: 'This operation needs an Authorization header with a bearer token.', headers: bearer() },
  TOKEN_INVALID: { number: 40102, message: 'The bearer token is not valid.', headers: bearer(', error="invalid_token"') },
  TOKEN_READ_ONLY: { number: 40301, message: 'The bearer token may only read.', headers: bearer(', error="insufficient_scope"') },
  PATH_UNKNOWN: { number: 40401, message: 'There is nothing at this path.' },
  PLANT_NOT_FOUND: { number: 40402, message: 'You have no plant with this id.' },
  METHOD_NOT_ALLOWED: { number: 40501, message: 'This path does not answer to this method.' },
  REQUEST_TIMEOUT: { number: 40801, message: 'The request did not arrive in time.' },
  URL_TOO_LONG: { number: 41401, message: 'The URL is too long.' },
  EXPECTATION_UNKNOWN: { number: 41701, message: 'The only expectation this service meets is 100-continue.' },
  HEADERS_TOO_LARGE: { number: 43101, message: 'The headers are too large.' },
  INTERNAL: { number: 50001, message: 'Something went wrong inside the service.' },
  DATABASE_UNAVAILABLE: { number: 50301, message: 'The database cannot be reached.', headers: later },
  OVERLOADED: { number: 50302, message: 'The service has more work than it can do.', headers: later },
  STOPPING: { number: 50303, message: 'The service is stopping.', headers: later }
} satisfies Record<string, { number: number, message: string, headers?: Record<string, string> }>

export type ErrorName = keyof typeof catalogue

export const ErrorSchema = Type.Object({
  error: Type.Integer({ format: 'int32', description: 'The number of the error, see the table of errors' }),
  message: Type.String({ description: 'What is wrong, for a person' })
}, { $id: 'Error', description: 'The body of every answer that is not a success' })

/** What a route's schema says of its failures: besides those any request can meet, it can end in these. */
export const failures = (...errors: ErrorName[]) => ({ '4xx': { ...ErrorSchema, errors }, '5xx': ErrorSchema })

/** A fault with a number of its own. Handlers throw it; `cause` is for the log and never reaches the caller. */
export class ApiError extends Error {
  readonly number: number
  readonly status: number
  readonly headers: Record<string, string>

  constructor (name: ErrorName, options: { message?: string, cause?: unknown } = {}) {
    const { number, message, headers = {} } = { headers: {}, ...catalogue[name] }
    super(options.message ?? message, { cause: options.cause })
    this.name = name
    this.number = number
    this.status = Math.floor(number / 100)
    this.headers = headers
  }
}

/** One for all, since there may be thousands a second: the stack of each would cost more than the rest of its answer. */
export const overloaded = new ApiError('OVERLOADED')

// What Fastify, its plugins and Node's HTTP parser call the faults they find.
const foreignFaults: Record<string, ErrorName> = {
  FST_ERR_BAD_URL: 'URL_MALFORMED',
  FST_ERR_MAX_PARAM_LENGTH: 'URL_TOO_LONG',
  FST_STATIC_FORBIDDEN_PATH: 'PATH_UNKNOWN',
  FST_ERR_CTP_BODY_TOO_LARGE: 'BODY_TOO_LARGE',
  FST_ERR_CTP_INVALID_MEDIA_TYPE: 'CONTENT_TYPE_UNSUPPORTED',
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: 'HTTP_MALFORMED',
  FST_BEARER_AUTH_MISSING_AUTHORIZATION_HEADER: 'TOKEN_MISSING',
  // Our own check throws, so this one is left for schemes other than Bearer.
  FST_BEARER_AUTH_INVALID_AUTHORIZATION_HEADER: 'TOKEN_MISSING',
  // A body whose sender has gone: nobody reads the answer, and the log shall not call it our fault.
  ECONNRESET: 'HTTP_MALFORMED',
  // A long list whose reader has gone before it began.
  ERR_STREAM_PREMATURE_CLOSE: 'HTTP_MALFORMED',
  ERR_HTTP_REQUEST_TIMEOUT: 'REQUEST_TIMEOUT',
  HPE_HEADER_OVERFLOW: 'HEADERS_TOO_LARGE',
  HPE_CHUNK_EXTENSIONS_OVERFLOW: 'BODY_TOO_LARGE'
}

function toApiError (error: unknown, otherwise: ErrorName): ApiError {
  if (error instanceof ApiError) return error
  const { code = '', statusCode = 500 } = Object(error) as Partial<FastifyError>
  return new ApiError(foreignFaults[code] ?? (statusCode < 500 ? 'HTTP_MALFORMED' : otherwise), { cause: error })
}

/** Fastify's error handler: 4xx are the caller's and logged at info, the rest is ours and logged whole, but for what there may be thousands of a second. */
export function answerError (error: unknown, request: FastifyRequest, reply: FastifyReply): void {
  const fault = toApiError(error, 'INTERNAL')
  const { name, status, number, headers, message } = fault
  if (name === 'OVERLOADED') request.log.warn({ error: number }, message)
  else if (status >= 500) request.log.error({ err: fault.cause ?? error, error: number }, message)
  else logRefusal(fault, request.log, request.ip)
  // Fastify closes the connection after a body it could not take. A caller still
  // sending it would lose the answer: Node reads the rest and drops it.
  if (reply.hasHeader('connection') && reply.raw.shouldKeepAlive) reply.header('connection', 'keep-alive')
  reply.code(status).headers(headers).type('application/json').send({ error: number, message })
}

/** A whole HTTP response for a socket on which Node found the fault, before there is a request to reply to. */
export function rawErrorResponse (error: unknown, log: FastifyBaseLogger, remoteAddress?: string, extraHeaders: Record<string, string> = {}): string {
  const fault = toApiError(error, 'HTTP_MALFORMED')
  const { status, number, headers, message } = fault
  logRefusal(fault, log, remoteAddress)
  const body = JSON.stringify({ error: number, message })
  const lines = Object.entries({
    ...headers,
    ...extraHeaders,
    'content-type': 'application/json; charset=utf-8',
    'content-length': String(body.length),
    connection: 'close'
  }).map(([name, value]) => `${name}: ${value}\r\n`)
  return `HTTP/1.1 ${status} ${STATUS_CODES[status]}\r\n${lines.join('')}\r\n${body}`
}

function logRefusal ({ number, name, message, cause }: ApiError, log: FastifyBaseLogger, remoteAddress?: string): void {
  // Of another's error the code: its message may quote what the caller sent.
  const reason = typeof cause === 'string' ? cause : (cause as FastifyError | undefined)?.code ?? name
  log.info({ error: number, reason, remoteAddress }, message)
}
