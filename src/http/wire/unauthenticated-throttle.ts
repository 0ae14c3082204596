// Spreads requests of unauthenticated connections over several ticks (iterations of the event loop).
import type { FastifyInstance } from 'fastify'
import type { Socket } from 'node:net'
import { clientWork } from '../../scheduling/tick-limiter.ts'

type ClientConnection = Socket & {
  /** The client's address, until a request of this connection has had a valid token. */
  unauthenticated?: string | undefined
}

/** The cost of an unauthenticated or malformed request in the tick limiter: eight use up a tick. */
export const requestBytes = 32_768

/** Call this for a request with a valid token. Later requests of the connection are not throttled. */
export function markAuthenticated (connection: ClientConnection): void {
  connection.unauthenticated = undefined
}

/**
 * Starts the requests of unauthenticated connections in turns, fair by client address. Probes have turns of
 * their own, since they use new connections and may share an attacker's address.
 */
export function throttleUnauthenticated ({ server, routing }: FastifyInstance, probePaths: string[]): void {
  // Read `remoteAddress` on every socket right away: Node caches it as a property. Reading it later on some
  // sockets gives them a second hidden class, and V8 deoptimizes Node's socket code.
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
