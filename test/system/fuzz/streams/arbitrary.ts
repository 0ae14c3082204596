// Random streams of requests: the bytes that a client sends on one connection, and the client's behavior.
import fc from 'fast-check'
import { METHODS } from 'node:http'
import { rtspMethods } from './predict.ts'

/** Each user begins with these plants. */
export const seeds = new Map([1n, 2n, 3n].map((id) => [id, { name: `seed ${id}` }]))

/**
 * What the client does between two segments. `none`: writes the next segment in the same tick. `turn`: in the next
 * tick. `responses`: awaits the responses to all complete requests, and `100 Continue` if a head expects it. A
 * number: waits so many milliseconds.
 */
export type Pause = 'none' | 'turn' | 'responses' | number

export interface Stream {
  items: Item[]
  cuts: Cut[]
  /** Splits the stream into segments of about this size. */
  segmentBytes: number | undefined
  /** `late`: the client reads nothing before it has sent everything or awaits responses. */
  reader: 'eager' | 'late' | 'slow'
  /** `stay`: the client ends its side only after the last response. `leave` and `reset` await no response. */
  end: 'stay' | 'halfClose' | 'leave' | 'reset'
  /** Follows the last segment. */
  endPause: Pause
  /** The part of the bytes that the client sends, in thousandths. */
  sentPart: number
}

/** `times` equal requests. The texts contain the placeholders that `render` replaces. */
export interface Item {
  before: string
  method: string
  target: string
  version: string
  fields: string[]
  body: { text: string, chunks: Chunks | undefined } | undefined
  edit: { at: number, removed: number, inserted: string } | undefined
  times: number
}

interface Chunks { sizes: number[], extension: string, trailers: string[] }

/** Cuts before and after the end of a head or of an item, so that a segment of a few bytes contains the end. */
interface Cut { item: number, place: 'headEnd' | 'end' | 'inside', at: number, before: number, after: number, pause: Pause }

const weighted = <Value>(...choices: Array<[weight: number, ...values: Value[]]>) =>
  fc.oneof({ withCrossShrink: true }, ...choices.map(([weight, ...values]) => ({ weight, arbitrary: fc.constantFrom(...values) })))

// Bytes that the service must read as a body. They look like requests.
const hidden = 'DELETE /plants/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer @token\r\n\r\n'
const json = fc.record({
  id: fc.integer({ min: 1, max: 6 }),
  // `render` replaces @number, so that each create has another name.
  name: weighted([8, '@number'], [2, `@number ${hidden}`], [1, `@number${'x'.repeat(20_000)}`]),
  tag: weighted([3, undefined], [1, 'tag'])
}).map((plant) => JSON.stringify(plant))
const anyBody = fc.oneof({ withCrossShrink: true }, { weight: 2, arbitrary: json }, {
  weight: 3,
  arbitrary: fc.constantFrom(hidden, '', 'x', '{}', hidden, `{"id":4,"name":"n"}\r\n\r\n${hidden}`, `0\r\n\r\n${hidden}`, '\r\n\r\n')
})
const type = 'Content-Type: application/json'
const ownToken = 'Authorization: Bearer @token'

type Operation = Pick<Item, 'method' | 'target' | 'fields'> & { text?: string | undefined }
const plantPath = fc.integer({ min: 1, max: 6 }).map((id) => `/plants/${id}`)
const anyPath = fc.oneof({ withCrossShrink: true }, fc.constantFrom('/plants', '/livez', '/nothing', '*', '/plants?limit=2'), plantPath)
const creates = json.map((text): Operation => ({ method: 'POST', target: '/plants', fields: [ownToken, type], text }))
const deletes = plantPath.map((target): Operation => ({ method: 'DELETE', target, fields: [ownToken] }))
const lists = weighted([4, '/plants'], [2, '/plants?limit=2'])
  .map((target): Operation => ({ method: 'GET', target, fields: [ownToken] }))
const others = fc.record({
  method: fc.oneof({ withCrossShrink: true },
    { weight: 3, arbitrary: fc.constantFrom('GET', 'HEAD', 'POST', 'DELETE') },
    { weight: 3, arbitrary: fc.constantFrom(...METHODS, ...rtspMethods, 'PRI', 'FOO', 'get') },
    { weight: 1, arbitrary: fc.constant('CONNECT') }),
  target: anyPath,
  fields: fc.constantFrom([ownToken], [ownToken, type], ['Authorization: Bearer x'], []),
  text: fc.option(anyBody, { nil: undefined })
}).map((operation): Operation =>
  operation.method === 'CONNECT' ? { ...operation, target: 'x:1' } : operation)
const large = fc.constantFrom<Operation>(
  { method: 'GET', target: '/docs/scalar.js', fields: [] },
  { method: 'GET', target: '/plants', fields: ['Authorization: Bearer @large'] })

const plainFields = ['X: y', 'X:', 'Connection: keep-alive', 'Expect: 100-continue', `${'a:\r\n'.repeat(900)}X: y`]
const lastFields = [
  'Connection: close', 'connection: Keep-Alive, CLOSE', 'Connection: Upgrade\r\nUpgrade: h2c',
  'Upgrade: websocket\r\nConnection: keep-alive, upgrade', 'Upgrade: h2c'
]
const badFields = [
  'Transfer-Encoding: chunked', 'Transfer-Encoding: gzip, chunked', 'Transfer-Encoding: identity',
  'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked', 'Content-Length: 0', 'Content-Length: 5',
  'Content-Length: +5', 'Content-Length: 5, 5', 'Content-Length: 5\r\nContent-Length: 5', 'Expect: x', 'Host: x',
  'X : y', ' X: y', 'X: y\n', 'X: \0', 'X', `X: ${'x'.repeat(17_000)}`, `${'a:\r\n'.repeat(1100)}Upgrade: h2c`
]
const fields = fc.oneof({ withCrossShrink: true },
  { weight: 20, arbitrary: fc.constant([]) },
  { weight: 5, arbitrary: fc.constantFrom(...plainFields).map((field) => [field]) },
  { weight: 3, arbitrary: fc.constantFrom(...lastFields).map((field) => [field]) },
  { weight: 2, arbitrary: fc.array(fc.constantFrom(...plainFields, ...lastFields, ...badFields), { maxLength: 3 }) })
const chunks = fc.record({
  sizes: fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 4 }),
  extension: weighted([4, ''], [1, ';x', ';x=y', ';x="\\";\xFF"']),
  trailers: weighted<string[]>([6, []], [1, ['X: y'], ['Connection: close'], ['Upgrade: h2c'], ['Content-Length: 5'], ['X y']])
})
const edits = fc.record({
  at: fc.nat(999),
  removed: fc.nat(3),
  inserted: fc.constantFrom('', ' ', '\r', '\n', '\r\n', '\r\n\r\n', '\0', ':', ',', '0', '1', 'x', '\t', ';', '\xFF', 'HTTP/1.1')
})

/** Returns `undefined` in `absent` of `absent + 1` cases. */
const seldom = <Value>(absent: number, arbitrary: fc.Arbitrary<Value>) =>
  fc.oneof({ withCrossShrink: true }, { weight: absent, arbitrary: fc.constant(undefined) }, { weight: 1, arbitrary })

const itemsWith = (largeWeight: number): fc.Arbitrary<Item> => fc.tuple(
  fc.oneof({ withCrossShrink: true }, { weight: 20, arbitrary: creates }, { weight: 15, arbitrary: deletes },
    { weight: 15, arbitrary: lists }, { weight: 20, arbitrary: others }, { weight: largeWeight, arbitrary: large }),
  weighted([60, ''], [3, '\r\n'], [2, 'XY'], [1, '\n', 'X', ' ']),
  weighted([30, '1.1'], [2, '1.0'], [1, '2.0']),
  fields,
  seldom(1, chunks),
  seldom(20, edits),
  weighted([20, 1], [1, 2, 17, 20])
).map(([{ method, target, fields, text }, before, version, further, chunks, edit, times]) => ({
  before,
  method,
  target,
  version,
  fields: [...fields, ...further],
  body: text === undefined ? undefined : { text, chunks },
  // A faulty request for a large response could have a response that no prediction covers.
  edit: target === '/docs/scalar.js' || fields.join().includes('@large') ? undefined : edit,
  times
}))

/** `largeWeight`: how often a request has a large response. `longPauses`: how often a pause has up to `maxPauseMs`. */
interface Weights { large: number, longPauses: number, maxPauseMs: number, slowReaders: number }

const pauses = ({ longPauses, maxPauseMs }: Weights): fc.Arbitrary<Pause> => fc.oneof({ withCrossShrink: true },
  { weight: 1, arbitrary: fc.constant('none') }, { weight: 2, arbitrary: fc.constant('turn') },
  { weight: 2, arbitrary: fc.constant('responses') }, { weight: 4, arbitrary: fc.integer({ min: 1, max: 4 }) },
  { weight: longPauses, arbitrary: fc.integer({ min: 1, max: maxPauseMs }) })

export const streamsWith = (weights: Weights): fc.Arbitrary<Stream> => fc.record({
  items: fc.array(itemsWith(weights.large), { maxLength: 8, size: 'max' }),
  cuts: fc.array(fc.record({
    item: fc.nat(7),
    place: weighted<Cut['place']>([4, 'headEnd'], [2, 'end', 'inside']),
    at: fc.nat(999),
    before: weighted([3, 0], [1, 1, 2, 3]),
    after: weighted([3, 0], [1, 1, 2, 3]),
    pause: pauses(weights)
  }), { maxLength: 12, size: 'max' }),
  segmentBytes: seldom(15, fc.integer({ min: 1, max: 100 })),
  reader: weighted<Stream['reader']>([20, 'eager'], [weights.slowReaders, 'late', 'slow']),
  end: weighted<Stream['end']>([5, 'stay'], [3, 'halfClose'], [1, 'leave', 'reset']),
  endPause: pauses(weights),
  sentPart: fc.oneof({ withCrossShrink: true }, { weight: 5, arbitrary: fc.constant(1000) },
    { weight: 1, arbitrary: fc.nat(1000) })
})

export interface Segment { bytes: Buffer, pause: Pause }

/** Returns the segments of a stream. A pause follows its segment. The tokens must have the same length. */
export function render (stream: Stream, token: string, largeToken: string): Segment[] {
  const cuts = new Map<number, Pause>()
  let text = ''
  stream.items.forEach((item, index) => {
    // Each create has another name.
    const fill = (part: string) => part.replaceAll('@number', `${10 + index}`)
      .replaceAll('@token', token).replaceAll('@large', largeToken)
    const all = editOf(textOf(item, fill), item.edit).repeat(item.times)
    const headEnd = all.indexOf('\r\n\r\n') + 4
    for (const { item: cutItem, place, at, before, after, pause } of stream.cuts) {
      if (cutItem % stream.items.length !== index) continue
      const within = { headEnd, end: all.length, inside: Math.floor(at * all.length / 1000) }[place]
      cuts.set(text.length + within - before, pause).set(text.length + within + after, pause)
    }
    text += all
  })
  const bytes = Buffer.from(text, 'latin1').subarray(0, Math.ceil(text.length * stream.sentPart / 1000))
  // Limit the number of segments, because each takes time.
  const step = Math.max(stream.segmentBytes ?? Infinity, bytes.length / 200)
  for (let at = step; at < bytes.length; at += step) cuts.set(Math.ceil(at), 'turn')
  const places = [...cuts.keys()].filter((at) => at > 0 && at < bytes.length).sort((a, b) => a - b)
  return [0, ...places].map((start, index) => {
    const end = places[index] ?? bytes.length
    return { bytes: bytes.subarray(start, end), pause: cuts.get(end) ?? 'none' }
  })
}

function textOf ({ before, method, target, version, fields, body }: Item, fill: (part: string) => string): string {
  const head = [`${method} ${target} HTTP/${version}`, 'Host: x', ...fields.map(fill)]
  if (body === undefined) return `${before}${head.join('\r\n')}\r\n\r\n`
  const { chunks } = body
  const text = fill(body.text)
  if (chunks === undefined) {
    return `${before}${head.join('\r\n')}\r\nContent-Length: ${text.length}\r\n\r\n${text}`
  }
  let rest = text
  const parts = [...chunks.sizes, text.length].flatMap((size) => {
    const part = rest.slice(0, size)
    rest = rest.slice(size)
    return part === '' ? [] : [`${part.length.toString(16)}${chunks.extension}\r\n${part}\r\n`]
  })
  const trailers = chunks.trailers.map((trailer) => `${trailer}\r\n`).join('')
  return `${before}${head.join('\r\n')}\r\nTransfer-Encoding: chunked\r\n\r\n` +
    `${parts.join('')}0${chunks.extension}\r\n${trailers}\r\n`
}

function editOf (text: string, edit: Item['edit']): string {
  if (edit === undefined) return text
  const at = Math.floor(edit.at * text.length / 1000)
  return text.slice(0, at) + edit.inserted + text.slice(at + edit.removed)
}
