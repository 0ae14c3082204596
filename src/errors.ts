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

type NewDefinition = Omit<ErrorDefinition, 'name' | 'headers'> & { headers?: Record<string, string> }

export const statusOf = (number: number) => Math.floor(number / 100)

export const catalogue = new Map<number, ErrorDefinition>()

/** Adds errors to the catalogue. Throws when another error already has the same name or number. */
export function defineErrors<Name extends string> (
  definitions: Record<Name, NewDefinition>
): Record<Name, ErrorDefinition> {
  const defined = Object.entries<NewDefinition>(definitions).map(([name, definition]) => {
    const { number, headers = headersByStatus[statusOf(number)] ?? {} } = definition
    const isTaken = [...catalogue.values()].some((known) => known.number === number || known.name === name)
    if (isTaken) throw new Error(`${name}: the name or ${number} is taken`)
    catalogue.set(number, { ...definition, name, headers })
    return [name, catalogue.get(number)]
  })
  return Object.fromEntries(defined)
}

/** The errors that are not specific to a domain. */
export const errors = defineErrors({
  HTTP_MALFORMED: { number: 40001, message: 'The request is not well-formed HTTP/1.1.' },
  URL_MALFORMED: { number: 40002, message: 'The URL is malformed: write % as %25.' },
  HOST_INVALID: { number: 40003, message: 'An HTTP/1.1 request needs one valid Host header.' },
  CONTENT_TYPE_UNSUPPORTED: { number: 40004, message: 'The body must be application/json in UTF-8.' },
  CONTENT_ENCODING_UNSUPPORTED:
    { number: 40005, message: 'The body must not have a content encoding: send it uncompressed.' },
  BODY_TOO_LARGE: { number: 40006, message: 'The body is larger than this service accepts.' },
  BODY_NOT_UTF8: { number: 40007, message: 'The body is not valid UTF-8.' },
  BODY_NOT_JSON: { number: 40008, message: 'The body is not valid JSON.' },
  BODY_KEY_FORBIDDEN: { number: 40009, message: 'The body must not have a key "__proto__".' },
  BODY_NOT_OBJECT: { number: 40010, message: 'The body must be a JSON object.' },
  FIELD_MISSING: { number: 40011, message: 'A required field is missing.' },
  FIELD_INVALID: { number: 40012, message: 'A field of the body has a wrong value.' },
  INT64_OUT_OF_RANGE: { number: 40013, message: 'An integer in the body does not fit in 64 bits.' },
  PATH_PARAMETER_INVALID: { number: 40015, message: 'A parameter in the path has a wrong value.' },
  QUERY_PARAMETER_INVALID:
    { number: 40016, message: 'A parameter in the query is unknown or has a wrong value.' },
  BODY_TOO_COMPLEX: { number: 40017, message: 'The body must not have more than 100 values.' },
  HTTP_TOO_OLD: {
    number: 40018,
    message: 'The response is too long for HTTP/1.0: use HTTP/1.1, or ask for fewer results.'
  },
  TOKEN_MISSING:
    { number: 40101, message: 'This operation needs an Authorization header with a bearer token.' },
  TOKEN_INVALID: {
    number: 40102,
    message: 'The bearer token is not valid.',
    headers: challenge(', error="invalid_token"')
  },
  TOKEN_READ_ONLY: { number: 40301, message: 'The bearer token may only read.' },
  TOKEN_SCOPE_MISSING:
    { number: 40302, message: 'The bearer token lacks the scope that this operation needs.' },
  PATH_UNKNOWN: { number: 40401, message: 'There is nothing at this path.' },
  METHOD_NOT_ALLOWED: { number: 40501, message: 'This path does not support this method.' },
  REQUEST_TIMEOUT: { number: 40801, message: 'The request did not arrive in time.' },
  URL_TOO_LONG: { number: 41401, message: 'The URL is too long.' },
  EXPECTATION_UNKNOWN: { number: 41701, message: 'The only supported expectation is 100-continue.' },
  RATE_LIMITED: { number: 42901, message: 'You have sent too many requests.' },
  ADDRESS_LIMITED: { number: 42902, message: 'Your address sent too many invalid tokens.' },
  HEADERS_TOO_LARGE: { number: 43101, message: 'The headers are too large.' },
  INTERNAL: { number: 50001, message: 'Something went wrong inside the service.' },
  METHOD_UNKNOWN: { number: 50101, message: 'This service does not know this method.' },
  DATABASE_UNAVAILABLE: { number: 50301, message: 'The database cannot be reached.' },
  OVERLOADED: { number: 50302, message: 'The service has more work than it can do.' },
  STOPPING: { number: 50303, message: 'The service is stopping.' },
  DATABASE_SLOW: { number: 50304, message: 'The database did not respond in time.' },
  DATABASE_FULL: { number: 50305, message: 'The database has no room to store anything.' },
  KEYS_UNAVAILABLE: {
    number: 50306,
    message: 'The keys of the identity provider cannot be fetched.',
    headers: { 'retry-after': '10' }
  }
})

/** Returns TOKEN_SCOPE_MISSING with a challenge that names the scope (RFC 6750, section 3). */
export const scopeMissing = (scope: string): ErrorDefinition => ({
  ...errors.TOKEN_SCOPE_MISSING,
  headers: challenge(`, error="insufficient_scope", scope="${scope}"`)
})

export const ErrorSchema = Type.Object({
  error: Type.Integer({ format: 'int32', description: 'The number of the error: see the table of errors' }),
  message: Type.String({ description: 'What is wrong, in words for people' })
}, { $id: 'Error', description: 'The body of every response that is not a success' })

/** The error that handlers throw. `cause` is for the log only: the client never gets it. */
export class ApiError extends Error {
  readonly number: number
  readonly status: number
  readonly headers: Record<string, string>

  constructor (definition: ErrorDefinition, options: { message?: string, cause?: unknown } = {}) {
    super(options.message ?? definition.message, { cause: options.cause })
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
