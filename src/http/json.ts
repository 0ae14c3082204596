// From the bytes of a body to the value they stand for, nothing of it lost.
import { isUtf8 } from 'node:buffer'
import type { IncomingHttpHeaders } from 'node:http'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { inlineBytes } from '../scheduling/memory-budget.ts'
import { userWork } from '../scheduling/tick-limiter.ts'

/** A plant has three. Parsing 1 MiB of small objects takes a third of a second: nobody else is served. */
const maxValues = 1000

/** Makes `application/json` the only type of a body. To be called on the root instance before any route. */
export function readJsonBodies (app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  const options = { parseAs: 'buffer' } as const
  app.addContentTypeParser('application/json', options, (request: FastifyRequest, body: Buffer, done) => {
    if (body.length <= inlineBytes) return done(null, parseJsonBody(body))
    userWork.run(request.identity?.user ?? '', body.length, () => {
      try {
        done(null, parseJsonBody(body))
      } catch (error) {
        done(error as Error)
      }
    })
  })
}

/** What the headers say of a body that could not be read; its type is looked at by Fastify. */
export function faultOfContent (headers: IncomingHttpHeaders): ErrorDefinition | undefined {
  const { 'content-type': contentType = '', 'content-encoding': contentEncoding = 'identity' } = headers
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/i.exec(contentType)?.[1]
  if (charset !== undefined && !/^utf-?8$/i.test(charset)) return errors.CONTENT_TYPE_UNSUPPORTED
  return contentEncoding.toLowerCase() === 'identity' ? undefined : errors.CONTENT_ENCODING_UNSUPPORTED
}

/** Reads a request body (RFC 8259): bytes that are not UTF-8 are refused. No body at all is undefined. */
function parseJsonBody (bytes: Buffer): unknown {
  if (bytes.length === 0) return undefined
  if (!isUtf8(bytes)) throw new ApiError(errors.BODY_NOT_UTF8)
  const { values, isPlain } = survey(bytes)
  if (values > maxValues) throw new ApiError(errors.BODY_TOO_COMPLEX)
  const text = bytes.toString().replace(/^\uFEFF/, '')
  try {
    return isPlain && !text.includes('__proto__') ? JSON.parse(text) : JSON.parse(text, keepSource as Reviver)
  } catch (cause) {
    throw cause instanceof ApiError ? cause : new ApiError(errors.BODY_NOT_JSON, { cause })
  }
}

const code = (character: string) => character.charCodeAt(0)
const [quote, backslash, u] = [code('"'), code('\\'), code('u')]
const [comma, brace, bracket] = [code(','), code('{'), code('[')]
const [zero, nine, dot, bigE, smallE] = [code('0'), code('9'), code('.'), code('E'), code('e')]

/**
 * Looks once at each byte of a text that may or may not be JSON, so that no
 * text costs more than another of its length. Counts its values, up to one too
 * many: the commas and opening brackets outside of strings. It is plain when
 * no number can have lost anything as a double, since none has a fraction, an
 * exponent or more than 15 digits, and no key can be other than it looks.
 */
function survey (bytes: Buffer): { values: number, isPlain: boolean } {
  let values = 0
  let digits = 0
  let isPlain = true
  for (let at = 0; at < bytes.length && values <= maxValues; at++) {
    const byte = bytes[at] as number
    if (byte >= zero && byte <= nine) {
      if (++digits > 15) isPlain = false
      continue
    }
    if (digits > 0 && (byte === dot || byte === smallE || byte === bigE)) isPlain = false
    digits = 0
    if (byte === comma || byte === brace || byte === bracket) values++
    else if (byte === quote) {
      while (++at < bytes.length && bytes[at] !== quote) {
        if (bytes[at] === backslash && bytes[++at] === u) isPlain = false
      }
    }
  }
  return { values, isPlain }
}

type Reviver = Parameters<typeof JSON.parse>[1]

const sources = new WeakMap<object, Map<string, string>>()

/** The text of a number in a body, where as a double it may be another than the one that was written. */
export const sourceOf = (holder: object, key: string): string | undefined => sources.get(holder)?.get(key)

// What TypeScript does not know yet (https://github.com/tc39/proposal-json-parse-with-source).
function keepSource (this: object, key: string, value: unknown, { source }: { source: string }): unknown {
  if (key === '__proto__') throw new ApiError(errors.BODY_KEY_FORBIDDEN)
  if (typeof value === 'number') {
    const texts = sources.get(this) ?? new Map()
    sources.set(this, texts.set(key, source))
  }
  return value
}
