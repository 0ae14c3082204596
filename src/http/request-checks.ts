// What is refused of a request before any route has a say in it.
import type { IncomingMessage } from 'node:http'
import { isIPv6 } from 'node:net'
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'
import { faultOfContent } from './json.ts'
import { METHODS } from './node-http.ts'

/** To be called on the root instance before any route is added. */
export function rejectMalformedRequests (app: FastifyInstance): void {
  // Before Fastify, which answers some malformed requests without any hook.
  app.server.prependListener('request', (request, response) => {
    // Where its body ends is anybody's guess (RFC 9112, section 6.1).
    if (hasBadFraming(request)) response.shouldKeepAlive = false
    // Node's parser takes the methods of RTSP, too. The router has no place for
    // them, and would say so at length in the log.
    if (!METHODS.includes(request.method as string)) Object.assign(request, { method: 'GET', url: '#' })
  })

  app.addHook('preParsing', ({ method, headers }: FastifyRequest, _reply, payload, done) => {
    if (headers['content-type'] === undefined || method === 'GET' || method === 'HEAD') return done()
    const fault = faultOfContent(headers)
    if (fault !== undefined) return done(new ApiError(fault))
    // Fastify would wait for the end of a body that has been left out, of which Node tells nobody any more.
    done(null, payload.readableEnded ? Readable.from([]) : payload)
  })

  const methods = new Map<string, string[]>()
  app.addHook('onRoute', ({ url, method }) => {
    methods.set(url, [...new Set([...methods.get(url) ?? [], ...[method].flat()])].sort())
  })
  app.addHook('onRequest', (request: FastifyRequest, reply: FastifyReply, done: HookHandlerDoneFunction) => {
    const fault = faultOf(request.raw)
    if (fault !== undefined) return done(new ApiError(fault))
    if (!request.is404) return done()
    const path = segmentsOf(request.url)
    const known = [...methods.keys()].find((url) => matches(url.split('/'), path))
    if (known === undefined) return done(new ApiError(errors.PATH_UNKNOWN))
    reply.header('allow', methods.get(known)?.join(', '))
    done(new ApiError(errors.METHOD_NOT_ALLOWED))
  })
}

/**
 * What Node lets pass although a server must not
 * (RFC 9112, sections 2.3, 3.2, 3.2.4 and 6.1; RFC 9110, section 10.1.1).
 */
function faultOf (request: IncomingMessage): ErrorDefinition | undefined {
  const { httpVersion, url, headers: { host, expect } } = request
  if (httpVersion === '1.1') {
    if (host === undefined) return errors.HOST_INVALID
    if (expect !== undefined && !/^100-continue$/i.test(expect)) return errors.EXPECTATION_UNKNOWN
  } else if (httpVersion !== '1.0') return errors.HTTP_MALFORMED
  if (hasBadFraming(request)) return errors.HTTP_MALFORMED
  if (host !== undefined && !isHost(host)) return errors.HOST_INVALID
  // The router takes it for the end of the path: /plants/1#2 would be plant 1.
  return (url as string).includes('#') ? errors.HTTP_MALFORMED : undefined
}

/** Node undoes no coding but chunked, and HTTP/1.0 knows none. */
const hasBadFraming = ({ httpVersion, headers: { 'transfer-encoding': coding } }: IncomingMessage) =>
  coding !== undefined && (httpVersion === '1.0' || !/^chunked$/i.test(coding))

// RFC 3986, section 3.2.2. Of two headers Node makes one with ", " between them, which is no host either.
const ipLiteral = /^\[(?:([\da-f:.]+)|v[\da-f]+\.[\w.~!$&'()*+,;=:-]+)\](?::\d*)?$/i
const registeredName = /^(?:[\w.~!$&'()*+,;=-]|%[\da-f]{2})*(?::\d*)?$/i

function isHost (text: string): boolean {
  if (registeredName.test(text)) return true
  const [isLiteral, address] = ipLiteral.exec(text) ?? []
  return isLiteral !== undefined && (address === undefined || isIPv6(address))
}

/** The path as the router reads it: that of an absolute URL, without the query, percent escapes decoded. */
function segmentsOf (url: string): string[] {
  const [path = ''] = url.replace(/^https?:\/\/[^/?]*/i, '').split('?', 1)
  return path.split('/').map(decodeURIComponent)
}

const matches = (pattern: string[], path: string[]) =>
  (pattern.length === path.length || pattern.at(-1) === '*') &&
  pattern.every((part, index) => part === path[index] || (/^[:*]/.test(part) && index < path.length))

/** An onRequest hook: the router leaves malformed escapes in the query as they are, this refuses them. */
export function rejectMalformedQuery (
  request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction
): void {
  const start = request.url.indexOf('?')
  try {
    if (start !== -1) decodeURIComponent(request.url.slice(start))
  } catch {
    return done(new ApiError(errors.URL_MALFORMED))
  }
  done()
}
