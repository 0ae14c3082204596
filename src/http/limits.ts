// Every bound and time-out of the wire, in one table.
import type { Server } from 'node:http'
import type { FastifyHttpOptions } from 'fastify'

/** What Fastify and Node need to be told so that no client can hold a connection for ever. */
export const serverLimits = {
  // Node only enforces the timeout of a request when that of its headers is not the longer one.
  requestTimeout: 30_000,
  // A socket on which nothing moves in either direction, a reader that has stalled included.
  connectionTimeout: 60_000,
  // Longer than the idle timeout of the usual balancers, so that they close first.
  keepAliveTimeout: 75_000,
  http: {
    headersTimeout: 15_000,
    connectionsCheckingInterval: 1_000,
    // Checked in requests.ts: Node's own answer has no body.
    requireHostHeader: false,
    // Node takes the first of two Host, Authorization or Content-Type headers
    // and drops the other; joined, neither passes for what it is not.
    joinDuplicateHeaders: true,
    // A twentieth of a list is setting up, ending and closing the stream of a body that is not there.
    optimizeEmptyRequests: true
  },
  routerOptions: { maxParamLength: 1_000 }
} satisfies FastifyHttpOptions<Server>

/** How long a caller whose connection is at its end may be silent before it is cut off. */
export const lingerIdleMs = 2000

/** How long such a caller may take in all to send what it was sending. */
export const lingerMs = 5000

/**
 * How many requests of a connection may wait for the answers before theirs. One
 * piece of 64 KiB can have thousands, and each head takes some memory.
 */
export const maxPipelined = 16

/** Descriptors for whatever is no caller's connection: the database's, the log, files. */
export const reservedDescriptors = 96
