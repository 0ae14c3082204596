// Reads the header `traceparent` (W3C Trace Context).

export interface TraceContext {
  traceId: string
  /** The span of the client. */
  parentId: string
  isSampled: boolean
}

const format = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/

/**
 * Undefined unless the header follows version 00 exactly. A request with any other header starts
 * a new trace (section 3.2.2.5) and never gets an error.
 */
export function readTraceparent (header: string | undefined): TraceContext | undefined {
  // Most requests have no such header, and this test is cheaper than the regular expression.
  if (header === undefined) return undefined
  const [, traceId, parentId, flags] = format.exec(header) ?? []
  if (traceId === undefined || parentId === undefined || flags === undefined) return undefined
  return { traceId, parentId, isSampled: (Number.parseInt(flags, 16) & 1) === 1 }
}

/** The log fields of the client's trace, if the request has a valid header. */
export function traceIds (header: string | string[] | undefined) {
  const context = readTraceparent(header as string | undefined)
  return context && { trace_id: context.traceId, span_id: context.parentId }
}
