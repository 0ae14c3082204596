// Builds random streams.
import { METHODS } from 'node:http'
import fc, { type Arbitrary } from 'fast-check'
import { largeFiles, type Cut, type Item, type Pause, type Stream } from './stream.ts'

/** A value shrinks toward the first choice. */
const oneOf = <Value>(...choices: Array<[weight: number, Arbitrary<Value>]>) =>
  fc.oneof({ withCrossShrink: true }, ...choices.map(([weight, arbitrary]) => ({ weight, arbitrary })))
const pick = <Value>(...choices: Array<[weight: number, ...values: Value[]]>) => oneOf<Value>(
  ...choices.map(([weight, ...values]): [number, Arbitrary<Value>] => [weight, fc.constantFrom(...values)]))
const maybe = <Value>(arbitrary: Arbitrary<Value>, absent = 1) =>
  oneOf([absent, fc.constant(undefined)], [1, arbitrary])

// The service must read these bytes as a part of a body, although they look like a request.
const hidden = 'DELETE /plants/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer @token\r\n\r\n'
const json = fc.record({
  id: fc.integer({ min: 1, max: 6 }),
  name: pick([8, '@number'], [2, `@number ${hidden}`], [1, `@number${'x'.repeat(20_000)}`]),
  tag: pick([3, undefined], [1, 'tag'])
}).map((plant) => JSON.stringify(plant))
const anyText = oneOf(
  [2, json],
  [2, fc.constant(hidden)],
  [3, fc.constantFrom('', 'x', '{}', '\r\n\r\n')],
  [1, fc.constantFrom('0', '{"id":4,"name":"n"}').map((start) => `${start}\r\n\r\n${hidden}`)])

const ownToken = 'Authorization: Bearer @token'
const jsonType = 'Content-Type: application/json'
const plantPath = fc.integer({ min: 1, max: 6 }).map((id) => `/plants/${id}`)
const anyPath = oneOf(
  [5, fc.constantFrom('/plants', '/plants?limit=2', '/livez', '/nothing', '*')], [1, plantPath])

type Operation = Pick<Item, 'method' | 'target' | 'fields'> & { text?: string | undefined }
const operation = (method: string, target: string, fields: string[], text?: string): Operation =>
  ({ method, target, fields, text })
const creates = json.map((text) => operation('POST', '/plants', [ownToken, jsonType], text))
const deletes = plantPath.map((target) => operation('DELETE', target, [ownToken]))
const lists = pick([2, '/plants'], [1, '/plants?limit=2'])
  .map((target) => operation('GET', target, [ownToken]))
const large = fc.constantFrom(
  operation('GET', '/plants', ['Authorization: Bearer @large']),
  ...largeFiles.map((path) => operation('GET', path, [])))
const others = fc.tuple(
  oneOf(
    [3, fc.constantFrom('GET', 'HEAD', 'POST', 'DELETE')],
    // RTSP has the methods DESCRIBE, PLAY and SETUP. Node's parser knows them.
    [3, fc.constantFrom(...METHODS, 'DESCRIBE', 'PLAY', 'SETUP', 'PRI', 'FOO', 'get')],
    [1, fc.constant('CONNECT')]),
  anyPath,
  fc.constantFrom<string[]>([ownToken], [ownToken, jsonType], ['Authorization: Bearer x'], []),
  maybe(anyText)
).map(([method, path, fields, text]) => operation(method, method === 'CONNECT' ? 'x:1' : path, fields, text))

const plainFields = [
  'X: y', 'X:', 'Connection: keep-alive', 'Expect: 100-continue', `${'a:\r\n'.repeat(900)}X: y`
]
const lastFields = [
  'Connection: close', 'connection: Keep-Alive, CLOSE', 'Proxy-Connection: close',
  'Connection: Upgrade\r\nUpgrade: h2c', 'Upgrade: websocket\r\nConnection: keep-alive, upgrade',
  'Upgrade: h2c'
]
const badFields = [
  'Transfer-Encoding: chunked', 'Transfer-Encoding: gzip, chunked', 'Transfer-Encoding: identity',
  'Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked', 'Content-Length: 0', 'Content-Length: 5',
  'Content-Length: +5', 'Content-Length: 5, 5', 'Content-Length: 5\r\nContent-Length: 5', 'Expect: x',
  'Host: x', 'X : y', ' X: y', 'X: y\n', 'X: \0', 'X', `X: ${'x'.repeat(17_000)}`,
  `${'a:\r\n'.repeat(1100)}Upgrade: h2c`
]
const furtherFields = oneOf<string[]>(
  [20, fc.constant([])],
  [5, fc.constantFrom(...plainFields).map((field) => [field])],
  [3, fc.constantFrom(...lastFields).map((field) => [field])],
  [2, fc.array(fc.constantFrom(...plainFields, ...lastFields, ...badFields), { maxLength: 3 })])

const chunks = fc.record({
  sizes: fc.array(fc.integer({ min: 1, max: 40 }), { maxLength: 4 }),
  extension: pick([4, ''], [1, ';x', ';x=y', ';x="\\";\xFF"']),
  trailers: pick<string[]>(
    [6, []], [1, ['X: y'], ['Connection: close'], ['Connection: Upgrade', 'Upgrade: h2c']],
    [1, ['Content-Length: 5'], ['X y']])
})
const edits = fc.record({
  at: fc.nat(999),
  removed: fc.nat(3),
  inserted: fc.constantFrom(
    '', ' ', '\r', '\n', '\r\n', '\r\n\r\n', '\0', ':', ',', ';', '0', '1', 'x', '\xFF', 'HTTP/1.1')
})

/** How often a response is large, how often a pause is long, and how often a client reads late or slowly. */
export interface Weights { large: number, longPauses: number, maxPauseMs: number, slowReaders: number }

const itemsWith = ({ large: largeWeight }: Weights): Arbitrary<Item> => fc.tuple(
  oneOf([20, creates], [15, deletes], [15, lists], [20, others], [largeWeight, large]),
  pick([60, ''], [3, '\r\n'], [2, 'XY'], [1, '\n', 'X', ' ']),
  pick([30, '1.1'], [2, '1.0'], [1, '2.0']),
  furtherFields,
  maybe(chunks),
  maybe(edits, 20),
  pick([20, 1], [1, 2, 17, 20])
).map(([{ method, target, fields, text }, before, version, further, chunks, edit, times]) => ({
  before,
  method,
  target,
  version,
  fields: [...fields, ...further],
  body: text === undefined ? undefined : { text, chunks },
  edit,
  times,
  // No prediction covers the large responses to faulty requests, and many large responses take long.
  ...(largeFiles.includes(target) || fields.join().includes('@large')) && { edit: undefined, times: 1 }
}))

const pausesWith = ({ longPauses, maxPauseMs }: Weights): Arbitrary<Pause> => oneOf<Pause>(
  [1, fc.constant('none')], [2, fc.constant('turn')], [2, fc.constant('responses')],
  [4, fc.integer({ min: 1, max: 4 })], [longPauses, fc.integer({ min: 1, max: maxPauseMs })])

const cutsWith = (weights: Weights): Arbitrary<Cut> => fc.record({
  item: fc.nat(7),
  place: pick<Cut['place']>([2, 'headEnd'], [1, 'end', 'inside']),
  at: fc.nat(999),
  before: pick([3, 0], [1, 1, 2, 3]),
  after: pick([3, 0], [1, 1, 2, 3]),
  pause: pausesWith(weights)
})

export const streamsWith = (weights: Weights): Arbitrary<Stream> => fc.record({
  items: fc.array(itemsWith(weights), { maxLength: 8, size: 'max' }),
  cuts: fc.array(cutsWith(weights), { maxLength: 12, size: 'max' }),
  segmentBytes: maybe(fc.integer({ min: 1, max: 100 }), 15),
  reader: pick<Stream['reader']>([20, 'eager'], [weights.slowReaders, 'late', 'slow']),
  end: pick<Stream['end']>([5, 'stay'], [3, 'halfClose'], [1, 'leave', 'reset']),
  endPause: pausesWith(weights),
  sentPart: oneOf([5, fc.constant(1000)], [1, fc.nat(1000)])
})
