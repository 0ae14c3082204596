// A slow, simple model that predicts the responses of the service. The model shares no code with the service,
// because an error in shared code would remain unnoticed.

interface Plant { name: string, tag?: string }
export type Plants = Map<bigint, Plant>

/** The expected response: the status and body of a success, or the number of an error. */
export type Verdict =
  { status: number, body?: unknown, link?: string | undefined } | { number: number, allow?: string }

export const smallest = -(2n ** 63n)
export const largest = 2n ** 63n - 1n

interface CreateRequest {
  contentType: string | undefined
  contentEncoding: string | undefined
  isChunked: boolean
  body: Buffer
  query: string
}

const maxBodyBytes = 16 * 1024

/** Returns the expected response to a create. On success, adds the plant to `plants`. */
export function create (plants: Plants, request: CreateRequest): Verdict {
  const { contentType, contentEncoding, isChunked, body, query } = request
  if (body.length === 0 && !isChunked) return { number: 40010 }
  if (contentType === undefined) return { number: body.length === 0 ? 40010 : 40004 }
  // The service checks these headers of a chunked body before it knows that the body is empty.
  if (!/^(utf-?8)?$/i.test(/charset=("?)([^;"]*)\1/i.exec(contentType)?.[2] ?? '')) return { number: 40004 }
  if (contentEncoding !== undefined && contentEncoding.toLowerCase() !== 'identity') return { number: 40005 }
  if (body.length === 0) return { number: 40010 }
  if (!/^\s*application\/json\s*(;|$)/i.test(contentType)) return { number: 40004 }
  if (body.length > maxBodyBytes) return { number: 40006 }
  const parsed = parse(body)
  if ('number' in parsed) return parsed
  const { value } = parsed
  if (typeof value !== 'object' || value === null || Array.isArray(value)) return { number: 40010 }
  const { id, name, tag } = value as Record<string, unknown>
  if (id === undefined || name === undefined) return { number: 40011 }
  if (typeof id === 'bigint' && (id < smallest || id > largest)) return { number: 40013 }
  if (typeof id !== 'bigint' || !isText(name) || (tag !== undefined && !isText(tag))) return { number: 40012 }
  if (parametersOf(query).length > 0) return { number: 40016 }
  const plant = { name, ...tag !== undefined && { tag } } as Plant
  const stored = plants.get(id)
  if (stored !== undefined) {
    return { number: stored.name === plant.name && stored.tag === plant.tag ? 40019 : 40014 }
  }
  plants.set(id, plant)
  return { status: 200, body: plant }
}

/** Returns the error of a path that the service does not look up. The path is encoded, and has no query. */
export function checkPath (path: string): { number: number } | undefined {
  if (path.length > 1000) return { number: 41401 }
  return isDecodable(path) ? undefined : { number: 40002 }
}

/**
 * Returns the expected response to a delete. On success, removes the plant from `plants`. `id` is the path
 * segment before percent-decoding.
 */
export function remove (plants: Plants, id: string, query: string): Verdict {
  const pathError = checkPath(`/plants/${id}`)
  if (pathError !== undefined) return pathError
  const value = readId(decodeURIComponent(id))
  if (value === undefined) return { number: 40015 }
  if (parametersOf(query).length > 0) return { number: 40016 }
  return plants.delete(value) ? { status: 204 } : { number: 40402 }
}

const readId = (text: string) =>
  /^-?\d+$/.test(text) && `${BigInt.asIntN(64, BigInt(text))}` === text ? BigInt(text) : undefined

/** Returns the expected response to a list. */
export function list (plants: Plants, query = ''): Verdict {
  const parameters = parametersOf(query)
  const { limit, after, ...unknown } = Object.fromEntries(parameters)
  const isTwice = parameters.length > new Set(parameters.map(([name]) => name)).size
  if (isTwice || Object.keys(unknown).length > 0) return { number: 40016 }
  const start = after === undefined ? smallest : readId(Buffer.from(after, 'base64url').toString())
  if (start === undefined || (after !== undefined && after !== cursorAt(start))) return { number: 40016 }
  if (limit !== undefined && !isLimit(limit)) return { number: 40016 }
  const sorted = [...plants].filter(([id]) => id >= start).sort(([a], [b]) => a < b ? -1 : 1)
  const end = limit === undefined ? sorted.length : Number(limit)
  const next = end === 0 ? undefined : sorted[end]
  return {
    status: 200,
    body: sorted.slice(0, end).map(([, plant]) => plant),
    link: next && `<plants?limit=${end}&after=${cursorAt(next[0])}>; rel="next"`
  }
}

export const cursorAt = (id: bigint) => Buffer.from(String(id)).toString('base64url')

const parametersOf = (query: string) => [...new URLSearchParams(`&${query}`)]

const isLimit = (text: string) => String(Number(text) & (2 ** 31 - 1)) === text

function isDecodable (url: string): boolean {
  try {
    decodeURIComponent(url)
    return true
  } catch {
    return false
  }
}

const isText = (value: unknown) => typeof value === 'string' && !/\0|[\uD800-\uDFFF]/u.test(value)

/** Parses JSON text. Returns integers as bigints. Returns an error number if the service rejects the text. */
function parse (bytes: Buffer): { value: unknown } | { number: number } {
  let number = 40007
  try {
    const text = new TextDecoder('utf-8', { fatal: true }).decode(bytes)
    number = 40008
    let isForbidden = false
    const value = JSON.parse(text, (key, value, { source }: { source?: string } = {}) => {
      if (key === '__proto__') isForbidden = true
      return typeof value === 'number' ? readInteger(source as string) ?? value : value
    })
    return isForbidden ? { number: 40009 } : { value }
  } catch {
    return { number }
  }
}

/** Returns the value of a JSON number, or undefined if the value is not an integer. */
export function readInteger (source: string): bigint | undefined {
  const [mantissa = '', exponent = '0'] = source.toLowerCase().split('e')
  const [whole = '', fraction = ''] = mantissa.split('.')
  const numerator = BigInt(whole.replace('-', '') + fraction)
  if (numerator === 0n) return 0n
  const power = BigInt(exponent) - BigInt(fraction.length)
  // Extreme powers of 10 take too long to compute. So a very low power counts as a fraction, and a very high
  // power as a value out of range.
  if (power < -100_000n) return undefined
  if (power > 100_000n) return largest + 1n
  const sign = whole.startsWith('-') ? -1n : 1n
  if (power >= 0n) return sign * numerator * 10n ** power
  const denominator = 10n ** -power
  return numerator % denominator === 0n ? sign * numerator / denominator : undefined
}
