// The timeouts and limits of Fastify's HTTP server.
import type { Server } from 'node:http'
import type { FastifyHttpOptions } from 'fastify'

export const serverLimits = {
  // Node only enforces the timeout of a request when that of its headers is not the longer one.
  requestTimeout: 30_000,
  // Ends a socket without traffic in either direction.
  connectionTimeout: 60_000,
  // Longer than the idle timeout of the usual balancers, so that they close first.
  keepAliveTimeout: 75_000,
  http: {
    headersTimeout: 15_000,
    connectionsCheckingInterval: 1_000,
    // request-checks.ts checks the header: Node's own response has no body.
    requireHostHeader: false,
    // Node would ignore a second Host, Authorization or Content-Type header. The joined headers are invalid.
    joinDuplicateHeaders: true,
    // Saves the stream of an absent body: a twentieth of the time of a list.
    optimizeEmptyRequests: true
  },
  routerOptions: { maxParamLength: 1_000 }
} satisfies FastifyHttpOptions<Server>
