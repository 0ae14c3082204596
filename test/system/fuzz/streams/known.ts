// Streams that broke a rule in the past.
import type { Cut, Item, Shutdown, Stream } from './stream.ts'

const item = (method: string, target: string, fields: string[], text?: string, before = ''): Item => ({
  before,
  method,
  target,
  version: '1.1',
  fields: ['Authorization: Bearer @token', ...fields],
  body: text === undefined ? undefined : { text, chunks: undefined },
  edit: undefined,
  times: 1
})
const afterHead = (item: number, before: number, after: number, pause = 20): Cut =>
  ({ item, place: 'headEnd', at: 0, before, after, pause })
const stream = (items: Item[], cuts: Cut[]): Stream => ({
  items, cuts, segmentBytes: undefined, reader: 'eager', end: 'halfClose', endPause: 20, sentPart: 1000
})

const upgrade = 'Connection: Upgrade\r\nUpgrade: h2c'
const type = 'Content-Type: application/json'
const expect = 'Expect: 100-continue'
const plant = '{"id":4,"name":"n"}'
const remove = 'DELETE /plants/1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer @token\r\n\r\n'

export const knownStreams: Stream[] = [
  // The parser skipped the second head, and executed the second body.
  stream(
    [item('POST', '/plants', [type, upgrade], plant), item('POST', '/plants', [type], remove)],
    [afterHead(0, 0, 0), afterHead(1, 0, 0)]),
  // The parser skipped XY before DELETE, and executed DELETE.
  stream(
    [item('GET', '/plants', [upgrade]), item('DELETE', '/plants/1', [], undefined, 'XY')],
    [afterHead(0, 1, 2)]),
  // The rest of a body arrived after its response. The malformed request behind the body got no response.
  stream(
    [item('GET', '/plants', [], plant), item('POST', '/plants', [type], plant, 'XY')],
    [afterHead(0, 0, 0)]),
  // A response had `Connection: close`, and further responses followed.
  stream(
    [item('POST', '/plants', [type, expect], plant), item('GET', '/plants', [`X: ${'x'.repeat(17_000)}`])],
    []),
  // The second response had `Connection: close`, although 18 requests were waiting.
  stream([{ ...item('POST', '/plants', [type, expect], plant), times: 20 }], []),
  // The client ended its side while an error waited for its turn. The client got no error.
  {
    ...stream([item('GET', '/plants', []), item('GET', '/plants', [], undefined, 'XY')], []),
    endPause: 'none'
  },
  // The service responded to a malformed body while the token was looked up, and logged a second response.
  stream(
    [item('POST', '/plants', [type, 'Transfer-Encoding: chunked']),
      item('GET', '/plants', [], undefined, 'zz')],
    []),
  // The input ended within the body of an upgrade request, which Node does not report. The client waited.
  {
    ...stream([item('GET', '/plants', []), item('POST', '/plants', [type, upgrade], plant)], []),
    sentPart: 990
  }
]

const afterItem = (item: number): Cut => ({ item, place: 'end', at: 0, before: 0, after: 0, pause: 20 })
const create = item('POST', '/plants', [type], plant)
/** The body arrives in parts, for 7 s. */
const slowly = [1, 2, 3, 4, 5, 6].map((before): Cut => ({ ...afterItem(0), before, pause: 1200 }))
const file = item('GET', '/openapi.json', [])
const files = Array<Item>(6).fill({ ...file, times: 15 })

export const knownShutdowns: Shutdown[] = [{
  streams: [
    // The second body completed after the signal. The create ran, but the client got no response.
    stream([create], []),
    { ...stream([create], [afterHead(0, 0, 0, 300)]), end: 'stay' },
    // The socket buffers were full. The response was complete, but not flushed, and was cut.
    { ...stream(files, [0, 1, 2, 3, 4].map(afterItem)), reader: 'late', endPause: 400 },
    // The system's buffers held complete responses. A further request arrived after the signal, and the
    // system reset the connection.
    {
      ...stream([{ ...file, times: 8 }, file], [{ ...afterItem(0), pause: 400 }]),
      reader: 'late',
      endPause: 100
    }
  ],
  signal: 'SIGTERM',
  signalMs: 200,
  lock: 'share'
}, {
  // The body completed 7 s after the signal. The service waited for the client until it was killed.
  streams: [{ ...stream([create], slowly), end: 'stay' }],
  signal: 'SIGTERM',
  signalMs: 100,
  lock: undefined
}]
