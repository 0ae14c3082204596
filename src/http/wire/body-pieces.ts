// Closes connections that send a request body in very small pieces: chunks, or segments of the network.
import type { Server } from 'node:http'
import type { HttpSocket } from './node-internals.ts'
import type { CountBytes } from './reads.ts'

/** A body may have `maxPieces`, and one more for each `pieceBytes`. For each piece, Node takes 1 to 4 µs. */
const [maxPieces, pieceBytes] = [100, 256]

/** The index of `HTTPParser.kOnBody`. */
const onBody = 3

/** Node's own handler, which all parsers share. */
let handle: ((piece: Buffer) => void) | undefined

/** Call this after `serializePipelining`. See docs/design/031-pieces-of-a-body.md. */
export function limitBodyPieces (server: Server, countBytes?: CountBytes): void {
  server.on('connection', (socket: HttpSocket) => {
    const parser = socket.parser as NonNullable<HttpSocket['parser']>
    handle ??= parser[onBody]
    // Node may reuse the parser for a response to a client in this process, such as the exporter of traces.
    socket.once('close', () => { parser[onBody] = handle })
    let [request, left] = [parser.incoming, 0]
    parser[onBody] = (piece) => {
      if (request !== parser.incoming) [request, left] = [parser.incoming, maxPieces]
      left += piece.length / pieceBytes - 1
      countBytes?.(socket, piece.length)
      if (left >= 0) return handle?.call(parser, piece)
      // Without a handler, Node skips the remaining pieces of the current read almost without cost.
      parser[onBody] = undefined
      request?.destroy()
    }
  })
}
