// The log of a request, whose lines have its id and those of its caller's trace.
import type { FastifyBaseLogger, FastifyServerOptions } from 'fastify'
import { readTraceparent } from './trace-context.ts'

type Factory = NonNullable<FastifyServerOptions['childLoggerFactory']>
/** A message, or an object and a message. */
type Line = [object: unknown, message?: string]

/** Fastify makes one for each request. */
export const createRequestLog: Factory = (logger, bindings, options, { headers }) => new RequestLog(() => {
  const context = readTraceparent(headers.traceparent as string | undefined)
  if (context === undefined) return logger.child(bindings, options)
  return logger.child({ ...bindings, trace_id: context.traceId, span_id: context.parentId }, options)
})

/** Pino's child, made for its first line: for the many requests that have none it would be for nothing. */
class RequestLog implements FastifyBaseLogger {
  readonly #make: () => FastifyBaseLogger
  #made: FastifyBaseLogger | undefined

  constructor (make: () => FastifyBaseLogger) {
    this.#make = make
  }

  get #log (): FastifyBaseLogger {
    this.#made ??= this.#make()
    return this.#made
  }

  get level () { return this.#log.level }
  set level (level) { this.#log.level = level }
  fatal (...line: Line) { this.#log.fatal(...line) }
  error (...line: Line) { this.#log.error(...line) }
  warn (...line: Line) { this.#log.warn(...line) }
  info (...line: Line) { this.#log.info(...line) }
  debug (...line: Line) { this.#log.debug(...line) }
  trace (...line: Line) { this.#log.trace(...line) }
  silent () {}
  child (...options: Parameters<FastifyBaseLogger['child']>) { return this.#log.child(...options) }
}
