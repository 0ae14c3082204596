import { isUtf8 } from 'node:buffer'
import type { FastifyRequest } from 'fastify'
import secureJson from 'secure-json-parse'
import { ApiError } from '../errors.ts'
import { readInt64 } from './int64.ts'

/**
 * Reads a request body (RFC 8259) without changing any of it: bytes that are
 * not UTF-8 are refused, and the number at the top-level key `id` becomes the
 * exact bigint where it is one. No body at all is undefined.
 */
export function parseJsonBody (request: FastifyRequest, bytes: Buffer): unknown {
  const { 'content-type': contentType = '', 'content-encoding': contentEncoding } = request.headers
  const charset = /;\s*charset\s*=\s*"?([^\s;"]*)/i.exec(contentType)?.[1]
  if (charset !== undefined && charset.toLowerCase() !== 'utf-8') throw new ApiError('CONTENT_TYPE_UNSUPPORTED')
  if (contentEncoding !== undefined && contentEncoding.toLowerCase() !== 'identity') throw new ApiError('CONTENT_ENCODING_UNSUPPORTED')
  if (bytes.length === 0) return undefined
  if (!isUtf8(bytes)) throw new ApiError('BODY_NOT_UTF8')
  const text = bytes.toString()
  const body = parse(text)
  if (typeof body?.id === 'number') {
    body.id = looksExact(text) ? BigInt(body.id) : readInt64(sourceOfId(text)) ?? body.id
  }
  return body
}

function parse (text: string): { id?: unknown } | null {
  let body
  try {
    body = secureJson.parse(text, { protoAction: 'error', constructorAction: 'ignore', safe: true })
  } catch (cause) {
    throw new ApiError('BODY_NOT_JSON', { cause })
  }
  // The library gives null for a forbidden key, and of course for the body `null`.
  if (body === null && text.includes('{')) throw new ApiError('BODY_KEY_FORBIDDEN')
  return body
}

/**
 * No number in the text can have lost anything as a double: none has a
 * fraction, an exponent or more than 15 digits. Strings that look so only
 * cost the slower way, which a reviver with `context.source` would be too:
 * on a hostile megabyte it takes a third of a second, the scan below 2 ms.
 */
const looksExact = (text: string) => !/\d[.eE]|\d{16}/.test(text)

/** The text of the number at the last top-level key `id`, in text known to be JSON with such a number. */
function sourceOfId (text: string): string {
  let source = ''
  let depth = 0
  let key = ''
  for (let at = 0; at < text.length; at++) {
    const char = text[at]
    if (char === '{' || char === '[') depth++
    else if (char === '}' || char === ']') depth--
    else if (char === '"') {
      const end = endOfString(text, at)
      if (depth === 1) key = text.slice(at, end)
      at = end - 1
    } else if (char === ':' && depth === 1 && (key === '"id"' || (key.includes('\\') && JSON.parse(key) === 'id'))) {
      source = /[^\s,}]*/.exec(text.slice(at + 1).trimStart())?.[0] as string
    }
  }
  return source
}

/** The index after the closing quote of the string that starts at `start`. */
function endOfString (text: string, start: number): number {
  let end = text.indexOf('"', start + 1)
  while (isEscaped(text, end)) end = text.indexOf('"', end + 1)
  return end + 1
}

function isEscaped (text: string, at: number): boolean {
  let backslashes = 0
  while (text[at - 1 - backslashes] === '\\') backslashes++
  return backslashes % 2 === 1
}
