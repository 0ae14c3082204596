// The timeouts and limits of Fastify's HTTP server.
import type { Server } from 'node:http'
import type { FastifyHttpOptions } from 'fastify'

export const serverLimits = {
  // Node enforces this timeout only if `headersTimeout` is not longer.
  requestTimeout: 30_000,
  // Closes a connection without traffic in either direction.
  connectionTimeout: 60_000,
  // Longer than the idle timeout of common load balancers, so that the balancer closes the connection first.
  keepAliveTimeout: 75_000,
  http: {
    headersTimeout: 15_000,
    connectionsCheckingInterval: 1_000,
    // request-checks.ts rejects a request without Host. Node's own error response would have no body.
    requireHostHeader: false,
    // Node would ignore a second Host, Authorization or Content-Type header. A joined value gets rejected.
    joinDuplicateHeaders: true,
    // Creates no stream for an absent body. This saves a twentieth of the time that a list takes.
    optimizeEmptyRequests: true
  },
  routerOptions: { maxParamLength: 1_000 }
} satisfies FastifyHttpOptions<Server>
