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
    [afterHead(0, 1, 2)])
]

const afterItem = (item: number): Cut => ({ item, place: 'end', at: 0, before: 0, after: 0, pause: 20 })
const create = item('POST', '/plants', [type], plant)
const files = Array<Item>(6).fill({ ...item('GET', '/openapi.json', []), times: 15 })

export const knownShutdowns: Shutdown[] = [{
  streams: [
    // The second body completed after the signal. The create ran, but the client got no response.
    stream([create], []),
    stream([create], [afterHead(0, 0, 0, 300)]),
    // The socket buffers were full. The response was complete, but not flushed, and was cut.
    { ...stream(files, [0, 1, 2, 3, 4].map(afterItem)), reader: 'late', endPause: 400 }
  ],
  signal: 'SIGTERM',
  signalMs: 200,
  lock: 'share'
}]
