// Reads JSON bodies, and keeps 64-bit integers exact.
import { isUtf8 } from 'node:buffer'
import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors } from '../errors.ts'
import { isRead } from './request-checks.ts'

const otherCharset = /;\s*charset\s*=(?!\s*"?utf-?8(?:["\s;]|$))/i

export const int64Range = `from ${-(2n ** 63n)} to ${2n ** 63n - 1n}`
export const inInt64Range = (value: bigint) => BigInt.asIntN(64, value) === value

/** Returns the length of the body, or Infinity if the client does not announce the length. */
export const maxBodyBytes = (
  { 'transfer-encoding': coding, 'content-length': length = '0' }: IncomingHttpHeaders
): number => coding === undefined ? Number(length) : Infinity

/** Accepts only `application/json`. */
export function readJsonBodies (app: FastifyInstance): void {
  app.addHook('preParsing', ({ method, headers }, _reply, _payload, done) => {
    const { 'content-type': type, 'content-encoding': encoding = 'identity' } = headers
    if (type === undefined || isRead(method)) return done()
    if (maxBodyBytes(headers) === 0) {
      // Many clients send a type without a body. Fastify would reject types that have no parser.
      headers['content-type'] = undefined
      return done()
    }
    if (otherCharset.test(type)) return done(new ApiError(errors.CONTENT_TYPE_UNSUPPORTED))
    if (!/^identity$/i.test(encoding)) return done(new ApiError(errors.CONTENT_ENCODING_UNSUPPORTED))
    done()
  })
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body: Buffer, done) => {
    if (!isUtf8(body)) throw new ApiError(errors.BODY_NOT_UTF8)
    done(null, body.length === 0 ? undefined : parseJson(body.toString()))
  })
  // For all other types. Some clients send an empty chunked body: only its end shows that there is no body.
  app.addContentTypeParser('*', ({ headers }, payload, done) => {
    const settle = (error: Error | null) => {
      payload.off('end', accept).off('data', reject).off('error', settle)
      done(error)
    }
    const accept = () => settle(null)
    const reject = () => settle(new ApiError(errors.CONTENT_TYPE_UNSUPPORTED))
    if (Number(headers['content-length']) > 0) reject()
    else payload.on('end', accept).on('data', reject).on('error', settle)
  })
}

/** Parses JSON (RFC 8259). Throws an ApiError if the text is not valid. */
export function parseJson (text: string): unknown {
  if (text.startsWith('\uFEFF')) text = text.slice(1)
  try {
    values = 0
    return needsReviver.test(text) ? JSON.parse(text, revive) : JSON.parse(text)
  } catch (cause) {
    if (cause instanceof ApiError) throw cause
    // Some 2,300 nested values overflow the stack.
    if (cause instanceof RangeError) throw tooManyValues
    // V8 tells the position, or quotes some characters of the text, perhaps half of a surrogate pair.
    const detail = (cause as SyntaxError).message.toWellFormed()
    throw new ApiError(errors.BODY_NOT_JSON, { detail, cause })
  }
}

// Matches a body that may contain a number of over 15 digits, a fraction, an exponent or the key `__proto__`.
// Only such a body needs the reviver, with which parsing takes many times as long.
const needsReviver = /(?<!\d)\d{16}|\d[.eE]|\\u|__proto__/
/** The reviver may visit this many values. 16 KiB of small numbers would take 8 ms. */
const maxValues = 100
const tooManyValues = new ApiError(errors.BODY_TOO_LARGE, { detail: `at most ${maxValues} values` })
/** How many values the reviver has visited. */
let values = 0

// TypeScript's type for a reviver lacks the third parameter, so the parameter must have a default.
function revive (key: string, value: unknown, { source } = { source: '' }): unknown {
  if (++values > maxValues) throw tooManyValues
  if (key === '__proto__') throw new ApiError(errors.BODY_KEY_FORBIDDEN)
  return typeof value === 'number' ? exactNumber(value, source) : value
}

/**
 * Returns a bigint for a 64-bit integer beyond ±2^53, and NaN for a fraction that JSON.parse rounded to an
 * integer or to infinity. For other numbers returns `double`, the result of JSON.parse. `source` is the
 * number's text.
 */
function exactNumber (double: number, source: string): number | bigint {
  if (Number.isFinite(double) && !Number.isInteger(double)) return double
  const [mantissa = '', exponent = '0'] = source.split(/e/i)
  const [whole = '', fraction = ''] = mantissa.split('.')
  // The number is `digits` times ten to the power of `shift`.
  const [digits, shift] = [whole + fraction, Number(exponent) - fraction.length]
  if (shift < 0 && /[1-9]/.test(digits.slice(shift))) return NaN
  if (Number.isSafeInteger(double) || Math.abs(double) > 2 ** 63) return double
  const value = BigInt(shift < 0 ? digits.slice(0, shift) : digits + '0'.repeat(shift))
  return inInt64Range(value) ? value : double
}
