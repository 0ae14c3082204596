// Spreads requests of unauthenticated connections over several ticks.
import type { FastifyInstance } from 'fastify'
import type { Socket } from 'node:net'
import { clientWork } from '../../scheduling/tick-limiter.ts'

type ClientConnection = Socket & {
  /** The client's address until a request has had a valid token. */
  unauthenticated?: string | undefined
}

/** What an unauthenticated or malformed request costs, in bytes of other work: eight in a tick. */
export const requestBytes = 32_768

/** Call this for a request with a valid token: further requests of the connection don't wait. */
export function markAuthenticated (connection: ClientConnection): void {
  connection.unauthenticated = undefined
}

/**
 * A tick may bring a thousand requests. Those of unauthenticated clients take turns, by address. Probes
 * take turns of their own, since they use new connections and may share an attacker's address.
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
