// The table of errors and their numbers.
import { Type } from '@sinclair/typebox'

const challenge = (attributes = '') => ({ 'www-authenticate': `Bearer realm="plants"${attributes}` })
const later = { 'retry-after': '1' }

/** The headers of all errors with a status, unless the error has headers of its own. */
const headersByStatus: Record<number, Record<string, string>> = {
  401: challenge(), 403: challenge(', error="insufficient_scope"'), 429: later, 503: later
}

export interface ErrorDefinition {
  name: string
  /** The HTTP status times 100, plus a running number. */
  number: number
  message: string
  headers: Record<string, string>
}

type NewDefinition = [number: number, message: string, headers?: Record<string, string>]

export const statusOf = (number: number) => Math.floor(number / 100)

export const catalogue = new Map<number, ErrorDefinition>()

/** Adds errors to the catalogue. Throws when another error already has the same name or number. */
export function defineErrors<Name extends string> (
  definitions: Record<Name, NewDefinition>
): Record<Name, ErrorDefinition> {
  const defined = Object.entries<NewDefinition>(definitions).map(([name, [number, message, special]]) => {
    const isTaken = catalogue.values().some((known) => known.number === number || known.name === name)
    if (isTaken) throw new Error(`${name}: the name or ${number} is taken`)
    const headers = special ?? headersByStatus[statusOf(number)] ?? {}
    const definition = { name, number, message, headers }
    catalogue.set(number, definition)
    return [name, definition]
  })
  return Object.fromEntries(defined)
}

/** The errors that are not specific to a domain. */
export const errors = defineErrors({
  HTTP_MALFORMED: [40001, 'The request is not well-formed HTTP/1.1.'],
  URL_MALFORMED: [40002, 'The URL is malformed: write % as %25.'],
  HOST_INVALID: [40003, 'An HTTP/1.1 request needs one valid Host header.'],
  CONTENT_TYPE_UNSUPPORTED: [40004, 'The body must be JSON in UTF-8, with `Content-Type: application/json`.'],
  CONTENT_ENCODING_UNSUPPORTED: [40005, 'The body must not have a content encoding: send it uncompressed.'],
  BODY_TOO_LARGE: [40006, 'The body is larger than this service accepts.'],
  BODY_NOT_UTF8: [40007, 'The body is not valid UTF-8.'],
  BODY_NOT_JSON: [40008, 'The body is not valid JSON.'],
  BODY_KEY_FORBIDDEN: [40009, 'The body must not have a key "__proto__".'],
  BODY_NOT_OBJECT: [40010, 'The body must be a JSON object.'],
  FIELD_MISSING: [40011, 'A required field is missing.'],
  FIELD_INVALID: [40012, 'A field of the body has a wrong value.'],
  INT64_OUT_OF_RANGE: [40013, 'An integer in the body does not fit in 64 bits.'],
  PATH_PARAMETER_INVALID: [40015, 'A parameter in the path has a wrong value.'],
  QUERY_PARAMETER_INVALID: [40016, 'A parameter in the query is unknown or has a wrong value.'],
  HTTP_TOO_OLD: [40018, 'The response is too long for HTTP/1.0: use HTTP/1.1, or ask for fewer results.'],
  TOKEN_MISSING: [40101, 'This operation needs the header `Authorization: Bearer <token>`.'],
  TOKEN_INVALID: [40102, 'The bearer token is not valid.', challenge(', error="invalid_token"')],
  TOKEN_READ_ONLY: [40301, 'The bearer token may only read.'],
  TOKEN_SCOPE_MISSING: [40302, 'The bearer token lacks the scope that this operation needs.'],
  PATH_UNKNOWN: [40401, 'There is nothing at this path.'],
  METHOD_NOT_ALLOWED: [40501, 'This path does not support this method.'],
  REQUEST_TIMEOUT: [40801, 'The request did not arrive in time.'],
  URL_TOO_LONG: [41401, 'The URL is too long.'],
  EXPECTATION_UNKNOWN: [41701, 'The only supported expectation is 100-continue.'],
  RATE_LIMITED: [42901, 'You have sent too many requests.'],
  ADDRESS_LIMITED: [42902, 'Your address sent too many invalid tokens.'],
  HEADERS_TOO_LARGE: [43101, 'The headers are too large.'],
  INTERNAL: [50001, 'Something went wrong inside the service.'],
  METHOD_UNKNOWN: [50101, 'This service does not know this method.'],
  DATABASE_UNAVAILABLE: [50301, 'The database cannot be reached.'],
  OVERLOADED: [50302, 'The service has more work than it can do.'],
  STOPPING: [50303, 'The service is stopping.'],
  DATABASE_SLOW: [50304, 'The database did not respond in time.'],
  DATABASE_FULL: [50305, 'The database has no room to store anything.'],
  KEYS_UNAVAILABLE: [50306, 'The keys of the identity provider cannot be fetched.', { 'retry-after': '10' }],
  DATABASE_READ_ONLY: [50307, 'The database accepts no writes at the moment.']
})

/** Returns TOKEN_SCOPE_MISSING with a challenge that names the scope (RFC 6750, section 3). */
export const scopeMissing = (scope: string): ErrorDefinition => ({
  ...errors.TOKEN_SCOPE_MISSING,
  headers: challenge(`, error="insufficient_scope", scope="${scope}"`)
})

/** TOKEN_INVALID with a challenge that tells the client to get a new token. */
export const tokenExpired: ErrorDefinition = {
  ...errors.TOKEN_INVALID,
  headers: challenge(', error="invalid_token", error_description="The token has expired"')
}

export const ErrorSchema = Type.Object({
  error: Type.Integer({ format: 'int32', description: 'The number of the error: see the table of errors' }),
  message: Type.String({ description: 'What is wrong, in words for people' })
}, { $id: 'Error', description: 'The body of every response that is not a success' })

interface ErrorOptions {
  /** Replaces the definition's message. */
  message?: string
  /** What the client can do. For the client only: the detail may contain text of the request. */
  detail?: string | undefined
  /** For the log only: the client never gets the cause. */
  cause?: unknown
}

/** The error that handlers throw. */
export class ApiError extends Error {
  readonly number: number
  readonly status: number
  readonly headers: Record<string, string>
  /** The message without the detail. */
  readonly logMessage: string

  constructor (definition: ErrorDefinition, options: ErrorOptions = {}) {
    const { message = definition.message, detail, cause } = options
    super(detail === undefined ? message : `${message.slice(0, -1)}: ${detail}.`, { cause })
    this.logMessage = message
    this.name = definition.name
    this.number = definition.number
    this.status = statusOf(definition.number)
    this.headers = definition.headers
  }
}

/** All shed requests share this error. A stack trace for each shed request would take too much time. */
export const overloaded = new ApiError(errors.OVERLOADED)

/** Returns a copy of `error` with another Retry-After. The copy shares the stack trace, which saves time. */
export const retryAfter = (error: ApiError, seconds: number): ApiError =>
  Object.create(error, { headers: { value: { 'retry-after': String(seconds) } } })

/** Only the log shows this error, because the client has already closed its connection. */
export const clientClosedRequest = new ApiError(errors.HTTP_MALFORMED, { cause: 'the client has gone' })
