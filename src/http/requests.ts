// What is refused of a request before any route has a say in it.
import { METHODS, type IncomingMessage } from 'node:http'
import { Readable } from 'node:stream'
import type { FastifyInstance, FastifyReply, FastifyRequest, HookHandlerDoneFunction } from 'fastify'
import { ApiError, errors, type ErrorKind } from '../errors.ts'
import { answerError } from './answers.ts'

/** To be called on the root instance before any route is added. */
export function refuseMalformedRequests (app: FastifyInstance): void {
  // Before Fastify, which answers some malformed requests without any hook.
  app.server.prependListener('request', (request) => {
    // Node's parser takes the methods of RTSP, too. The router has no place for
    // them, and would say so at length in the log.
    if (!METHODS.includes(request.method as string)) Object.assign(request, { method: 'GET', url: '#' })
  })

  // Fastify would wait for the end of a body that has been left out, of which Node tells nobody any more.
  app.addHook('preParsing', ({ headers }: FastifyRequest, _reply, payload, done) => {
    done(null, headers['content-type'] !== undefined && payload.readableEnded ? Readable.from([]) : payload)
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
  // For plugins that find nothing at a path of theirs, such as a file of /docs.
  app.setNotFoundHandler((request, reply) => answerError(new ApiError(errors.PATH_UNKNOWN), request, reply))
}

/** What Node lets pass although a server must not (RFC 9112, sections 2.3, 3.2 and 3.2.4; RFC 9110, section 10.1.1). */
function faultOf ({ httpVersion, url, headers: { host, expect } }: IncomingMessage): ErrorKind | undefined {
  if (httpVersion === '1.1') {
    if (host === undefined || host.includes(',')) return errors.HOST_MISSING
    if (expect !== undefined && !/^100-continue$/i.test(expect)) return errors.EXPECTATION_UNKNOWN
  } else if (httpVersion !== '1.0') return errors.HTTP_MALFORMED
  // The router takes it for the end of the path: /plants/1#2 would be plant 1.
  return (url as string).includes('#') ? errors.HTTP_MALFORMED : undefined
}

/** The path as the router reads it: that of an absolute URL, without the query, percent escapes decoded. */
const segmentsOf = (url: string) => (url.replace(/^https?:\/\/[^/?]*/i, '').split('?', 1)[0] as string).split('/').map(decodeURIComponent)

const matches = (pattern: string[], path: string[]) => (pattern.length === path.length || pattern.at(-1) === '*') &&
  pattern.every((part, index) => part === path[index] || (/^[:*]/.test(part) && index < path.length))

/** An onRequest hook: the router leaves malformed escapes in the query as they are, this refuses them. */
export function refuseMalformedQuery (request: FastifyRequest, _reply: FastifyReply, done: HookHandlerDoneFunction): void {
  const start = request.url.indexOf('?')
  try {
    if (start !== -1) decodeURIComponent(request.url.slice(start))
  } catch {
    return done(new ApiError(errors.URL_MALFORMED))
  }
  done()
}
