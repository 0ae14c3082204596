// What a client sends on a connection: items with known effects, cut into segments at random places.
import fc, { type Arbitrary } from 'fast-check'

/** A request, or bytes that only look like one. */
export interface Item {
  text: string
  /** The status of the response. An error, if undefined. */
  status?: number | undefined
  /** Only a request with status 200 or 204 has the effect. */
  effect?: { created: bigint, name: string } | { deleted: bigint }
  isHead: boolean
  /** `last`: no later item may run. `open`: the next item must run if it arrives after the response. */
  end: 'open' | 'last' | 'either'
  /** Node's parser reports no error in the body of this request. */
  isUpgrade: boolean
}

/** What the client does after a segment. `responses`: awaits the responses to all complete items. */
export type Pause = 'none' | 'tick' | 'responses' | number

/** The end of a segment. */
interface Cut { item: number, place: 'head' | 'inside' | 'end', at: number, pause: Pause }

export interface Stream {
  shapes: Shape[]
  cuts: Cut[]
  /** `late`: the client reads nothing until it awaits responses. */
  reader: 'eager' | 'late' | 'slow'
  /** `stay`: the client ends its side after the last response. `leave` and `reset` await no response. */
  end: 'stay' | 'halfClose' | 'leave' | 'reset'
  /** The part of the bytes that the client sends, in thousandths. */
  sentPart: number
}

interface Shape {
  operation: keyof typeof operations
  before: string
  version: string
  field: string
  chunks: number[] | undefined
  times: number
}

/** Plants that each user has. No item deletes the canary, but bodies contain a request that would. */
export const seeds = new Map([1n, 2n, 3n, 4n, 5n, 6n, 7n, 8n, 9n].map((id) => [id, `seed ${id}`]))
export const canary = 9n
const hidden = `DELETE /plants/${canary} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer @token\r\n\r\n`

const operations = {
  create: { line: 'POST /plants', status: 200 },
  delete: { line: 'DELETE /plants/@', status: 204 },
  list: { line: 'GET /plants', status: 200 },
  head: { line: 'HEAD /livez', status: 200 },
  // The service responds without waiting for the body.
  early: { line: 'GET /livez', status: 200, body: hidden },
  unknown: { line: 'POST /nothing', status: 404, body: hidden },
  unauthorized: { line: 'POST /plants', status: 401, body: hidden, token: 'x' },
  invalid: { line: 'POST /plants', status: 400, body: hidden },
  large: { line: 'GET /plants', status: 200, token: '@large' },
  garbage: { text: 'GET / HTTP/1.1\r\nno colon\r\n\r\n' },
  noise: { text: `XY\r\n\r\n${hidden}` },
  badChunk: {
    text: 'POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer @token\r\n' +
      `Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n${hidden}`
  },
  tunnel: { text: `CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n${hidden}` }
} satisfies Record<string, Operation>

interface Operation { line?: string, status?: number, body?: string, token?: string, text?: string }

const plain = ['X: y', 'Connection: keep-alive', 'Expect: 100-continue', `${'a:\r\n'.repeat(900)}X: y`]
const last = [
  'Connection: close', 'Proxy-Connection: CLOSE', 'Connection: Upgrade\r\nUpgrade: h2c', 'Upgrade: h2c'
]
/** The end of the request is unclear. */
const badFraming = ['Transfer-Encoding: gzip, chunked', 'Transfer-Encoding: identity', 'Content-Length: +5',
  'Content-Length: 5\r\nContent-Length: 5', 'Transfer-Encoding: chunked\r\nContent-Length: 5', 'X : y']
const rejected = ['Host: y', 'Expect: x']

export function itemsOf ({ shapes }: Stream, token: string, largeToken: string): Item[] {
  const fill = (text: string) => text.replaceAll('@token', token).replaceAll('@large', largeToken)
  return shapes.flatMap((shape) => Array<Shape>(shape.times).fill(shape))
    .map((shape, index) => toItem(shape, index, fill))
}

function toItem (shape: Shape, index: number, fill: (text: string) => string): Item {
  const { operation, before, version, field } = shape
  const { line = '', status, body, token = '@token', text }: Operation = operations[operation]
  if (text !== undefined || before === 'XY') {
    const malformed = before + (text ?? `${line} HTTP/1.1\r\n\r\n`)
    return { text: fill(malformed), isHead: false, end: 'last', isUpgrade: false }
  }
  const id = BigInt(100 + index)
  const name = `plant ${index} ${hidden}`
  const plant = JSON.stringify({ id: Number(id), name: fill(name) })
  const sent = operation === 'create' ? plant : fill(body ?? '')
  const framed = sent === '' ? '\r\n' : frame(sent, shape.chunks)
  const target = line.replace('@', String(index % 8 + 1))
  const isBad = badFraming.includes(field)
  const isLast = isBad || last.includes(field) || version !== '1.1'
  const type = sent === '' ? '' : 'Content-Type: application/json\r\n'
  // HTTP/1.0 has no chunks.
  const isTooNew = operation === 'large' || (sent !== '' && shape.chunks !== undefined)
  // A server ignores an expectation in HTTP/1.0 (RFC 9110, section 10.1.1).
  const isRejected = rejected.includes(field) && !(field === 'Expect: x' && version === '1.0')
  const changes = !isBad && !isRejected
  return {
    text: `${before}${target} HTTP/${version}\r\nHost: x\r\nAuthorization: Bearer ${fill(token)}\r\n` +
      `${type}${field === '' ? '' : `${field}\r\n`}${framed}`,
    status: changes && !(version === '1.0' && isTooNew) ? status : undefined,
    ...operation === 'create' && { effect: { created: id, name: fill(name) } },
    ...operation === 'delete' && { effect: { deleted: BigInt(index % 8 + 1) } },
    isHead: operation === 'head',
    end: isLast ? 'last' : isRejected || sent !== '' ? 'either' : 'open',
    isUpgrade: /upgrade/i.test(field)
  }
}

/** Returns the framing header, the empty line and the body. */
function frame (body: string, chunks: number[] | undefined): string {
  if (chunks === undefined) return `Content-Length: ${body.length}\r\n\r\n${body}`
  const parts: string[] = []
  let at = 0
  for (const size of [...chunks, body.length]) if (at < body.length) parts.push(body.slice(at, at += size))
  const text = parts.map((part) => `${part.length.toString(16)};x=y\r\n${part}\r\n`).join('')
  return `Transfer-Encoding: chunked\r\n\r\n${text}0\r\nX: y\r\n\r\n`
}

const pick = <Value>(...choices: Array<[weight: number, ...values: Value[]]>): Arbitrary<Value> =>
  fc.oneof(...choices.map(([weight, ...values]) => ({ weight, arbitrary: fc.constantFrom(...values) })))

const shapesWith = (large: number): Arbitrary<Shape> => fc.record({
  operation: pick<Shape['operation']>([25, 'create'], [15, 'delete'], [15, 'list'], [large, 'large'],
    [12, 'head', 'early', 'unknown', 'unauthorized', 'invalid'],
    [4, 'garbage', 'noise', 'badChunk', 'tunnel']),
  before: pick([40, ''], [2, '\r\n'], [1, 'XY']),
  version: pick([30, '1.1'], [1, '1.0']),
  field: pick([60, ''], [6, ...plain], [6, ...last], [3, ...badFraming], [2, ...rejected]),
  chunks: fc.option(fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 4 }), { nil: undefined }),
  times: fc.constant(1)
}).chain((shape) => pick([20, 1], [1, 3, 17, 120]).map((times) =>
  ({ ...shape, times: ['list', 'head'].includes(shape.operation) ? times : 1 })))

/** `slow` is the weight of large responses, of slow readers and of pauses up to `maxPauseMs`. */
export const streamsWith = (slow: number, maxPauseMs: number): Arbitrary<Stream> => fc.record({
  shapes: fc.array(shapesWith(slow), { maxLength: 8, size: 'max' }),
  cuts: fc.array(fc.record({
    item: fc.nat(7),
    place: pick<Cut['place']>([2, 'head', 'end'], [1, 'inside']),
    at: fc.nat(999),
    pause: fc.oneof(pick<Pause>([2, 'none', 'tick'], [6, 'responses'], [3, 1, 2, 3, 4]),
      fc.integer({ min: 1, max: maxPauseMs }))
  }), { maxLength: 12, size: 'max' }),
  reader: pick<Stream['reader']>([20, 'eager'], [slow, 'late', 'slow']),
  end: pick<Stream['end']>([5, 'stay'], [3, 'halfClose'], [1, 'leave', 'reset']),
  sentPart: pick([5, 1000], [1, ...Array.from({ length: 100 }, (_, index) => 10 * index)])
})

export interface Segment { bytes: string, pause: Pause }

/** Returns the segments of a stream. A pause follows its segment. */
export function segmentsOf (items: Item[], { cuts, sentPart }: Stream): Segment[] {
  const pauses = new Map<number, Pause>()
  const text = items.map((item) => item.text).join('')
  for (const { item, place, at, pause } of items.length > 0 ? cuts : []) {
    const index = item % items.length
    const start = items.slice(0, index).reduce((sum, { text }) => sum + text.length, 0)
    const { length } = (items[index] as Item).text
    const headEnd = (items[index] as Item).text.indexOf('\r\n\r\n') + 4
    // Some heads end a few bytes before or after the end of a segment.
    const shift = at < 500 ? 0 : at % 7 - 3
    const within = { head: headEnd + shift, end: length + shift, inside: Math.floor(at * length / 1000) }
    pauses.set(start + within[place], pause)
  }
  const end = Math.ceil(text.length * sentPart / 1000)
  const places = [...pauses.keys()].filter((at) => at > 0 && at < end).sort((a, b) => a - b)
  return [0, ...places].map((start, index) => {
    const stop = places[index] ?? end
    return { bytes: text.slice(start, stop), pause: pauses.get(stop) ?? 'none' }
  })
}
