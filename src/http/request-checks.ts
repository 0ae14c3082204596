// Before any route runs, rejects malformed requests, unknown paths, and methods that a path does not allow.
import { METHODS, type IncomingMessage } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import type { RespondToPreflight } from './cors.ts'

/** In characters, without the query. */
export const maxPathLength = 1000
const knownMethods = new Set(METHODS)

export const isRead = (method: string | undefined) => method === 'GET' || method === 'HEAD'

/** Requests that the router cannot handle. */
const unroutable = new WeakMap<IncomingMessage, ErrorDefinition>()

/** For Fastify's option `rewriteUrl`. Leads a request that the router cannot handle to a path that fails. */
export function rewriteUrl (request: IncomingMessage): string {
  // The origin may be part of the URL (RFC 9112, section 3.2.2).
  const url = (request.url as string).replace(/^https?:\/\/[^/?#]+\/?/i, '/')
  const error = unroutableError(request.method as string, url)
  if (error === undefined) return url
  unroutable.set(request, error)
  // Node's parser also accepts methods of RTSP, for which the router would log a long warning.
  if (error === errors.METHOD_UNKNOWN) request.method = 'GET'
  return '/#'
}

function unroutableError (method: string, url: string): ErrorDefinition | undefined {
  if (!knownMethods.has(method)) return errors.METHOD_UNKNOWN
  if (!/^[/*]/.test(url)) return errors.PATH_UNKNOWN
  if (url.length <= maxPathLength && !url.includes('%')) return
  const path = url.replace(/\?.*/s, '')
  if (path.length > maxPathLength) return errors.URL_TOO_LONG
  try {
    decodeURI(path)
  } catch {
    return errors.URL_MALFORMED
  }
}

/**
 * Whether the service must run no later request of the connection: the client wants to close the connection,
 * or the service cannot know where this request ends, or whether HTTP follows.
 */
export function isLastRequest (request: IncomingMessage): boolean {
  const { httpVersion, headers } = request
  const { connection, upgrade, 'proxy-connection': proxyConnection } = headers
  return httpVersion !== '1.1' || upgrade !== undefined || hasBadFraming(request) ||
    // Node's parser gives both headers the same meaning.
    hasClose(connection) || hasClose(proxyConnection)
}

const hasClose = (header?: string | string[]) => typeof header === 'string' && /\bclose\b/i.test(header)

const isContinue = /^100-continue$/i

/** `app` must be the root instance. Call this before any route is registered. */
export function rejectMalformedRequests (app: FastifyInstance, preflight?: RespondToPreflight): void {
  const methods = new Map<string, string[]>()
  app.addHook('onRoute', ({ url, method }) => {
    methods.set(url, [methods.get(url) ?? [], method].flat().sort())
  })
  const methodsOf = (path: string[]) =>
    methods.entries().find(([url]) => matches(url.split('/'), path))?.[1].join(', ')
  app.addHook('onRequest', (request, reply, done) => {
    const error = validateRequest(request.raw)
    if (error !== undefined) return done(new ApiError(error))
    if (!request.is404) return done()
    const path = segmentsOf(request.url)
    const allowed = methodsOf(path)
    if (allowed === undefined) {
      const hasSlash = path.length > 2 && path.at(-1) === '' && methodsOf(path.slice(0, -1)) !== undefined
      const detail = hasSlash ? 'remove the slash at the end' : undefined
      return done(new ApiError(errors.PATH_UNKNOWN, { detail }))
    }
    if (preflight?.(request, reply, allowed)) return
    reply.header('allow', allowed)
    done(new ApiError(errors.METHOD_NOT_ALLOWED, { detail: `use ${allowed}` }))
  })
}

/** Checks rules of RFC 9112 (2.3, 3.2, 3.2.4, 6.1) and RFC 9110 (10.1.1) that Node does not enforce. */
function validateRequest (request: IncomingMessage): ErrorDefinition | undefined {
  const { httpVersion, url, headers: { host, expect } } = request
  if (httpVersion === '1.1') {
    if (host === undefined) return errors.HOST_INVALID
    if (expect !== undefined && !isContinue.test(expect)) return errors.EXPECTATION_UNKNOWN
  } else if (httpVersion !== '1.0') return errors.HTTP_MALFORMED
  if (hasBadFraming(request)) return errors.HTTP_MALFORMED
  // The router would treat `*` as `/`.
  if (url === '*') return errors.PATH_UNKNOWN
  if (host !== undefined && !isHost(host)) return errors.HOST_INVALID
  // The router would cut the path at `#`: /books/1#2 would mean book 1.
  return url?.includes('#') ? unroutable.get(request) ?? errors.HTTP_MALFORMED : undefined
}

/** HTTP/1.0 has no transfer codings. In HTTP/1.1, Node decodes only `chunked`. Any other coding is bad. */
const hasBadFraming = ({ httpVersion, headers: { 'transfer-encoding': coding } }: IncomingMessage) =>
  coding !== undefined && (httpVersion === '1.0' || !/^chunked$/i.test(coding))

/** Checks a Host header. Also rejects two Host headers, which Node joins with ", ". */
const isHost = (text: string) =>
  text === '' || (/^[\w.~!$&'()*+,;=:[\]%-]+$/.test(text) && URL.canParse(`http://${text}`))

/** Returns the path's segments. Decodes percent escapes, as the router does. */
const segmentsOf = (url: string) => decodeURI(url.replace(/\?.*/s, '')).split('/')

const matches = (pattern: string[], path: string[]) => pattern.length === path.length &&
  pattern.every((part, index) => part === path[index] || (part.startsWith(':') && path[index] !== ''))
