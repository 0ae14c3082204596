// Before any route runs, rejects malformed requests, unknown paths, and methods that a path does not allow.
import { METHODS, type IncomingMessage } from 'node:http'
import type { FastifyInstance } from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import type { RespondToPreflight } from './cors.ts'

/** `app` must be the root instance. Call this before any route is registered. */
export function rejectMalformedRequests (app: FastifyInstance, preflight?: RespondToPreflight): void {
  // Run before Fastify's own listener, which responds to some malformed requests without running a hook.
  app.server.prependListener('request', (request, response) => {
    // Bad framing hides the end of the body, so close the connection after the response (RFC 9112, 6.1).
    if (hasBadFraming(request)) response.shouldKeepAlive = false
    // For RTSP methods, which Node's parser accepts, the router would log a long warning. Turn such a request
    // into `GET #`, which `validateRequest` rejects.
    if (!METHODS.includes(request.method as string)) Object.assign(request, { method: 'GET', url: '#' })
    // The router finds only paths, but CONNECT names a host. No path allows CONNECT.
    if (request.method === 'CONNECT') request.url = '/'
  })

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
    if (expect !== undefined && !/^100-continue$/i.test(expect)) return errors.EXPECTATION_UNKNOWN
  } else if (httpVersion !== '1.0') return errors.HTTP_MALFORMED
  if (hasBadFraming(request)) return errors.HTTP_MALFORMED
  // The router would treat `*` as `/`.
  if (url === '*') return errors.PATH_UNKNOWN
  if (host !== undefined && !isHost(host)) return errors.HOST_INVALID
  // The router would cut the path at `#`: /plants/1#2 would mean plant 1.
  return (url as string).includes('#') ? errors.HTTP_MALFORMED : undefined
}

/** HTTP/1.0 has no transfer codings. In HTTP/1.1, Node decodes only `chunked`. Any other coding is bad. */
const hasBadFraming = ({ httpVersion, headers: { 'transfer-encoding': coding } }: IncomingMessage) =>
  coding !== undefined && (httpVersion === '1.0' || !/^chunked$/i.test(coding))

/** Checks a Host header. Also rejects two Host headers, which Node joins with ", ". */
const isHost = (text: string) =>
  text === '' || (/^[\w.~!$&'()*+,;=:[\]%-]+$/.test(text) && URL.canParse(`http://${text}`))

/** Returns the path's segments, without origin and query. Decodes percent escapes, as the router does. */
const segmentsOf = (url: string) =>
  decodeURI(url.replace(/^https?:\/\/[^/?]*/i, '').replace(/\?.*/, '') || '/').split('/')

const matches = (pattern: string[], path: string[]) => pattern.length === path.length &&
  pattern.every((part, index) => part === path[index] || (part.startsWith(':') && path[index] !== ''))
