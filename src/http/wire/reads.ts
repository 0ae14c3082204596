// Spreads the reads of requests and bodies over several ticks (iterations of the event loop).
import type { Server } from 'node:http'
import { FairQueue } from '../../scheduling/fair-queue.ts'
import type { HttpSocket } from './node-internals.ts'

/** Per tick: the most first requests of connections, and the most bytes of bodies. 64 KiB take 0.2 ms. */
const [maxFirstRequests, maxBodyBytes] = [16, 524_288]

/** How many paused connections a tick resumes. One read of a connection returns at most 64 KiB. */
const turns = maxBodyBytes / 65_536

export type CountBytes = (socket: HttpSocket, bytes: number) => void

/** In bytes. All connections of an address that have sent such a piece of a body have the same key. */
const largePiece = 2048

/**
 * Node reads all connections that have data in one tick. When a tick has read `maxFirstRequests`, pauses all
 * connections that have sent no request yet. When a tick has read `maxBodyBytes`, pauses all connections.
 * Each later tick resumes some of them, fair by client address and by what a connection has sent. The
 * returned function counts the bytes of bodies.
 */
export function limitReads (server: Server): CountBytes {
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

  return (socket, bytes) => {
    schedule()
    if (bytes >= largePiece) keys.set(socket, `large ${socket.remoteAddress}`)
    const wasBelow = bodyBytes <= maxBodyBytes
    bodyBytes += bytes
    if (wasBelow && bodyBytes > maxBodyBytes) for (const other of keys.keys()) pause(other)
  }
}
