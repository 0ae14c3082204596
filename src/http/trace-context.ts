// Reads the header `traceparent` (W3C Trace Context).

const format = /^00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})$/

/** Without a valid header of version 00, returns undefined: the request then starts a new trace (3.2.2.5). */
export function readTraceparent (header: string | string[] | undefined) {
  const match = header === undefined ? null : format.exec(header as string)
  if (match === null) return undefined
  const [, traceId, parentId, flags] = match as unknown as [string, string, string, string]
  return { traceId, parentId, isSampled: (Number.parseInt(flags, 16) & 1) === 1 }
}
