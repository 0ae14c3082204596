// Spreads the work for unauthenticated connections over several ticks (iterations of the event loop).
import type { Server } from 'node:http'
import type { Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import { FairQueue } from '../../scheduling/fair-queue.ts'
import { clientWork } from '../../scheduling/tick-limiter.ts'

type ClientConnection = Socket & {
  /** The client's address. Undefined after a request with a valid token on this connection. */
  unauthenticated?: string | undefined
}

/** The cost of an unauthenticated or malformed request. A tick starts at most eight of these requests. */
export const requestBytes = 32_768

/** The most first requests that are read in a tick. Reading a request with a large body takes some 0.2 ms. */
const maxFirstReads = 16

/** Ends the throttling of a connection that has sent a valid token. */
export function markAuthenticated (connection: ClientConnection): void {
  connection.unauthenticated = undefined
}

/** Each address has a separate fair share for probes: an attacker may have the prober's address. */
export function throttleUnauthenticated ({ server, routing }: FastifyInstance, probePaths: string[]): void {
  const countFirstRead = limitFirstReads(server)
  // Read `remoteAddress` on every new socket: the first read adds a property to the socket. If only some
  // sockets had this property, V8 would run Node's socket code more slowly.
  server.on('connection', (socket: ClientConnection) => {
    socket.unauthenticated = String(socket.remoteAddress)
  })
  // Replaces Fastify's own listener.
  server.off('request', routing).on('request', (request, response) => {
    const { unauthenticated } = request.socket as ClientConnection
    if (unauthenticated === undefined) return routing(request, response)
    countFirstRead(request.socket)
    const kind = probePaths.includes(request.url as string) ? 'probe' : 'request'
    clientWork.run(`${kind} ${unauthenticated}`, requestBytes, () => {
      if (request.socket.writable) routing(request, response)
    })
  })
}

/**
 * Node reads all connections that have data in one tick. When a tick has read `maxFirstReads` first requests,
 * pauses all connections that have sent no request yet. Each later tick resumes some of these connections.
 * Call the returned function for each request of an unauthenticated connection.
 */
function limitFirstReads (server: Server): (socket: Socket) => void {
  const withoutRequest = new Set<Socket>()
  const paused = new FairQueue<Socket>()
  let reads = 0

  function resumeSome (): void {
    reads = 0
    for (let resumed = 0; resumed < maxFirstReads && paused.size > 0; resumed++) {
      const socket = paused.next() as Socket
      if (!socket.destroyed) withoutRequest.add(socket.resume())
    }
    if (paused.size > 0) setImmediate(resumeSome)
  }

  function countFirstRead (socket: Socket): void {
    if (!withoutRequest.delete(socket)) return
    if (reads++ === 0 && paused.size === 0) setImmediate(resumeSome)
    if (reads < maxFirstReads) return
    for (const other of withoutRequest) paused.add(String(other.remoteAddress), other.pause())
    withoutRequest.clear()
  }

  server.on('connection', (socket) => {
    withoutRequest.add(socket)
    socket.once('close', () => withoutRequest.delete(socket))
  }).on('clientError', (_error, socket) => countFirstRead(socket as Socket))
  return countFirstRead
}
