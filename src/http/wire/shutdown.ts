// Ends client connections during a shutdown.
import type { FastifyInstance } from 'fastify'
import { lingeringClose, lingerIdleMs } from './lingering-close.ts'
import type { HttpSocket } from './node-internals.ts'

export interface Lifecycle {
  starting?: boolean
  stopping: boolean
  /** From this time of `performance.now()` on, a shutdown cuts unfinished lists and bodies. */
  forceCloseAt?: number
}

/** Makes each response the last of its connection during a shutdown. */
export function closeOnShutdown (app: FastifyInstance, lifecycle: Lifecycle): void {
  const sockets = new Set<HttpSocket>()
  app.server.on('connection', (socket: HttpSocket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  // Run before Fastify's own listener, which responds to some malformed requests without running a hook.
  app.server.prependListener('request', (_request, response) => {
    if (lifecycle.stopping) response.shouldKeepAlive = false
  })
  // Node's own method keeps a connection with an incomplete request open, which delays the shutdown.
  app.server.closeIdleConnections = () => {
    for (const socket of sockets) {
      if (socket._httpMessage || socket.writableEnded) continue
      // The request is incomplete but already has its response. Let the client read the response.
      if (socket.parser?.incoming) lingeringClose(socket)
      else socket.destroy()
    }
  }

  // Cuts unfinished lists and bodies, which clients can repeat. Cutting writes would leave outcomes unknown.
  function closePartial (): void {
    const partial = [...sockets].filter(isPartial)
    if (performance.now() < (lifecycle.forceCloseAt ?? Infinity)) {
      // Before `forceCloseAt`, cut only connections that stall: give each a short idle timeout.
      for (const socket of partial) if (socket.timeout !== lingerIdleMs) socket.setTimeout(lingerIdleMs)
    } else if (partial.length > 0) {
      app.log.warn({ connections: partial.length }, 'the shutdown cuts unfinished lists and bodies')
      for (const socket of partial) socket.destroy()
    }
  }

  app.addHook('preClose', (done) => {
    // A response that has begun cannot add `Connection: close`. Close its connection soon after the response.
    app.server.keepAliveTimeout = 1
    for (const { _httpMessage: response } of sockets) if (response) response.shouldKeepAlive = false
    closePartial()
    const timer = setInterval(closePartial, 100)
    app.server.once('close', () => clearInterval(timer))
    done()
  })
}

/** Whether the response or the request body has begun but is not complete. */
function isPartial ({ _httpMessage: response, writableLength }: HttpSocket): boolean {
  return response?.headersSent || writableLength > 0 || response?.req.complete === false
}
