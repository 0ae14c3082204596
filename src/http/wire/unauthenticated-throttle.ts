// Spreads requests of unauthenticated connections over several ticks (iterations of the event loop).
import type { FastifyInstance } from 'fastify'
import type { Socket } from 'node:net'
import { clientWork } from '../../scheduling/tick-limiter.ts'

type ClientConnection = Socket & {
  /** The client's address. Undefined after a request with a valid token on this connection. */
  unauthenticated?: string | undefined
}

/** The cost of an unauthenticated or malformed request. A tick starts at most eight of these requests. */
export const requestBytes = 32_768

/** Ends the throttling of a connection that has sent a valid token. */
export function markAuthenticated (connection: ClientConnection): void {
  connection.unauthenticated = undefined
}

/** Each address has a separate fair share for probes: an attacker may have the prober's address. */
export function throttleUnauthenticated ({ server, routing }: FastifyInstance, probePaths: string[]): void {
  // Read `remoteAddress` on every new socket: the first read adds a property to the socket. If only some
  // sockets had this property, V8 would run Node's socket code more slowly.
  server.on('connection', (socket: ClientConnection) => {
    socket.unauthenticated = String(socket.remoteAddress)
  })
  // Replaces Fastify's own listener.
  server.off('request', routing).on('request', (request, response) => {
    const { unauthenticated } = request.socket as ClientConnection
    if (unauthenticated === undefined) return routing(request, response)
    const kind = probePaths.includes(request.url as string) ? 'probe' : 'request'
    clientWork.run(`${kind} ${unauthenticated}`, requestBytes, () => {
      if (request.socket.writable) routing(request, response)
    })
  })
}
