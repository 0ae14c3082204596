// Spreads the reads of requests and bodies over several ticks (iterations of the event loop). Closes a
// connection that sends a body in very small pieces (chunks, or segments of the network).
import type { Server } from 'node:http'
import { FairQueue } from '../../scheduling/fair-queue.ts'
import type { HttpSocket } from './node-internals.ts'

/** Per tick: the most first requests of connections, and the most bytes of bodies. 64 KiB take 0.2 ms. */
const [maxFirstRequests, maxBodyBytes] = [16, 524_288]
/** How many paused connections a tick resumes. One read of a connection returns at most 64 KiB. */
const turns = maxBodyBytes / 65_536
/** In bytes. All connections of an address that have sent such a piece of a body have the same key. */
const largePiece = 2048
/** A body may have `maxPieces`, and one more for each `pieceBytes`. For each piece, Node takes 1 to 4 µs. */
const [maxPieces, pieceBytes] = [100, 256]
/** The index of `HTTPParser.kOnBody`. */
const onBody = 3

/**
 * Node reads all connections that have data in one tick. When a tick has read `maxFirstRequests`, pauses all
 * connections that have sent no request yet. When a tick has read `maxBodyBytes`, pauses all connections.
 * Each later tick resumes some of them, fair by client address and by what a connection has sent. The
 * returned function counts the bytes of bodies.
 */
export function limitReads (server: Server) {
  /** The keys in the fair queue. The key of a connection without a request begins with `new`. */
  const keys = new Map<HttpSocket, string>()
  const paused = new FairQueue<HttpSocket>()
  let [firstRequests, bodyBytes] = [0, 0]
  let scheduled: NodeJS.Immediate | undefined

  function schedule (): void {
    scheduled ??= setImmediate(() => {
      scheduled = undefined
      firstRequests = bodyBytes = 0
      for (let turn = 0; turn < turns && paused.size > 0; turn++) paused.next()?.resume()
      if (paused.size > 0) schedule()
    })
  }

  function pause (socket: HttpSocket): void {
    if (!socket.isPaused()) paused.add(keys.get(socket) as string, socket.pause())
  }

  function countFirstRequest (socket: HttpSocket): void {
    if (!keys.get(socket)?.startsWith('new')) return
    keys.set(socket, `small ${socket.remoteAddress}`)
    schedule()
    if (++firstRequests !== maxFirstRequests) return
    for (const [other, key] of keys) if (key.startsWith('new')) pause(other)
  }

  server.on('connection', (socket: HttpSocket) => {
    // Read `remoteAddress` on every new socket: the first read adds a property to the socket. If only some
    // sockets had this property, V8 would run Node's socket code more slowly.
    keys.set(socket, `new ${socket.remoteAddress}`)
    socket.once('close', () => keys.delete(socket))
  }).prependListener('request', ({ socket }) => countFirstRequest(socket))
    .on('clientError', (_error, socket) => countFirstRequest(socket as HttpSocket))

  return (socket: HttpSocket, bytes: number): void => {
    schedule()
    if (bytes >= largePiece) keys.set(socket, `large ${socket.remoteAddress}`)
    const wasBelow = bodyBytes <= maxBodyBytes
    bodyBytes += bytes
    if (wasBelow && bodyBytes > maxBodyBytes) for (const other of keys.keys()) pause(other)
  }
}

/** See docs/design/031-pieces-of-a-body.md. */
export function limitBodyPieces (server: Server, countBytes?: ReturnType<typeof limitReads>): void {
  server.on('connection', (socket: HttpSocket) => {
    const parser = socket.parser as NonNullable<HttpSocket['parser']>
    const handle = parser[onBody]
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
