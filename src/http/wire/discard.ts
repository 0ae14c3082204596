// Reads and drops the rest of a rejected request, so that its client gets to read the response.
import type { Socket } from 'node:net'
import type { Readable } from 'node:stream'
import { clientWork } from '../../scheduling/tick-limiter.ts'

/** What a discarded chunk costs, in bytes of other work: eight chunks of up to 64 KiB in a tick. */
const chunkBytes = 32_768

/** By itself Node would read all that a hundred clients send before it serves another one. */
export function discardStream (stream: Readable, { remoteAddress }: Socket): void {
  stream.on('data', () => {
    stream.pause()
    clientWork.run(`discard ${remoteAddress}`, chunkBytes, () => stream.resume())
  })
}
