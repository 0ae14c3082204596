// What comes of a request that was refused is read, so that its caller gets to read the answer, and dropped.
import type { Readable } from 'node:stream'

/** So many pieces of 64 KiB, or two for a body, in a turn of the event loop, whoever sends them. */
const piecesInATurn = 8

let waiting: Readable[] = []

/** Left to itself Node would read all that a hundred callers send before it turns to anybody else. */
export function discardStream (stream: Readable): void {
  stream.on('data', () => {
    stream.pause()
    if (waiting.push(stream) === 1) setImmediate(next)
  })
}

function next (): void {
  for (const stream of waiting.slice(0, piecesInATurn)) stream.resume()
  waiting = waiting.slice(piecesInATurn)
  if (waiting.length > 0) setImmediate(next)
}
