// From the bytes of a body to the value they stand for, exactly.
import { isUtf8 } from 'node:buffer'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import secureJson from 'secure-json-parse'
import { ApiError, errors } from '../errors.ts'
import { readInt64 } from './int64.ts'

/** A plant has three. Parsing 1 MiB of small objects takes a third of a second, in which nobody else is served. */
const maxValues = 1000

/** Makes `application/json` the only type of a body. To be called on the root instance before any route is added. */
export function readJsonBodies (app: FastifyInstance): void {
  app.removeAllContentTypeParsers()
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request: FastifyRequest, body: Buffer, done) => {
    done(null, parseJsonBody(request, body))
  })
}

/**
 * Reads a request body (RFC 8259) without changing any of it: bytes that are
 * not UTF-8 are refused, and the number at the top-level key `id` becomes the
 * exact bigint where it is one. No body at all is undefined.
 */
function parseJsonBody (request: FastifyRequest, bytes: Buffer): unknown {
  const { 'content-type': contentType = '', 'content-encoding': contentEncoding } = request.headers
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/i.exec(contentType)?.[1]
  if (charset !== undefined && !/^utf-?8$/i.test(charset)) throw new ApiError(errors.CONTENT_TYPE_UNSUPPORTED)
  if (contentEncoding !== undefined && contentEncoding.toLowerCase() !== 'identity') throw new ApiError(errors.CONTENT_ENCODING_UNSUPPORTED)
  if (bytes.length === 0) return undefined
  if (!isUtf8(bytes)) throw new ApiError(errors.BODY_NOT_UTF8)
  const text = bytes.toString()
  // A text that short can't have too many values.
  const idSource = text.length <= maxValues && looksExact(text) ? undefined : walk(text)
  const body = parse(text)
  if (typeof body?.id === 'number') body.id = idSource === undefined ? BigInt(body.id) : readInt64(idSource) ?? body.id
  return body
}

function parse (text: string): { id?: unknown } | null {
  let body
  try {
    body = secureJson.parse(text, { protoAction: 'error', constructorAction: 'ignore', safe: true })
  } catch (cause) {
    throw new ApiError(errors.BODY_NOT_JSON, { cause })
  }
  // The library gives null for a forbidden key, and of course for the body `null`.
  if (body === null && text.includes('{')) throw new ApiError(errors.BODY_KEY_FORBIDDEN)
  return body
}

/**
 * No number in the text can have lost anything as a double: none has a
 * fraction, an exponent or more than 15 digits. Strings that look so only
 * cost the slower way.
 */
const looksExact = (text: string) => !/\d[.eE]|\d{16}/.test(text)

/**
 * Goes through the structure of a text that may or may not be JSON. Refuses
 * one of too many values, and otherwise gives the text of the number at the
 * last top-level key `id`, if there is one. A reviver with `context.source`
 * would give it too, but is called for every value and not for deep ones.
 */
function walk (text: string): string {
  let idAt = text.length
  let key = ''
  let depth = 0
  let values = 0
  const mark = /["{}[\],:]/g
  for (let found = mark.exec(text); found !== null; found = mark.exec(text)) {
    const [char] = found
    if (char === '"') {
      mark.lastIndex = endOfString(text, found.index)
      if (depth === 1) key = text.slice(found.index, mark.lastIndex)
    } else if (char === ',' || char === '{' || char === '[') {
      if (++values > maxValues) throw new ApiError(errors.BODY_TOO_COMPLEX)
      if (char !== ',') depth++
    } else if (char !== ':') depth--
    else if (depth === 1 && idKey.test(key)) idAt = mark.lastIndex
  }
  return /[^\s,}]*/.exec(text.slice(idAt).trimStart())?.[0] as string
}

const idKey = /^"(i|\\u0069)(d|\\u0064)"$/

/** The index after the closing quote of the string that starts at `start`. */
function endOfString (text: string, start: number): number {
  let end = start + 1
  while (end < text.length && text[end] !== '"') end += text[end] === '\\' ? 2 : 1
  return end + 1
}
