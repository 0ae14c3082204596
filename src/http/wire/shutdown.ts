// Ends client connections during a shutdown.
import type { FastifyInstance } from 'fastify'
import { lingeringClose, lingerIdleMs } from './lingering-close.ts'
import type { HttpSocket } from './node-internals.ts'

export interface Lifecycle {
  starting?: boolean
  stopping: boolean
  /** The time of `performance.now()` when a shutdown cuts unfinished lists and bodies. */
  forceCloseAt?: number
}

/** During a shutdown each response is the last of its connection. Call this before adding routes. */
export function closeOnShutdown (app: FastifyInstance, lifecycle: Lifecycle): void {
  const sockets = new Set<HttpSocket>()
  app.server.on('connection', (socket: HttpSocket) => {
    sockets.add(socket)
    socket.once('close', () => sockets.delete(socket))
  })
  // Listen before Fastify, which responds to some malformed requests without any hook.
  app.server.prependListener('request', (_request, response) => {
    if (lifecycle.stopping) response.shouldKeepAlive = false
  })
  // Node's own method leaves connections without a complete request open, and the server waits for them.
  app.server.closeIdleConnections = () => {
    for (const socket of sockets) {
      if (socket._httpMessage || socket.writableEnded) continue
      // The response was sent before the request was complete.
      if (socket.parser?.incoming) lingeringClose(socket)
      else socket.destroy()
    }
  }

  // Clients can repeat lists and incomplete bodies. Other requests stay: a client could not know the outcome.
  function closePartial (): void {
    const partial = [...sockets].filter(isPartial)
    if (performance.now() < (lifecycle.forceCloseAt ?? Infinity)) {
      // Stalled connections end soon, the others at `forceCloseAt`.
      for (const socket of partial) if (socket.timeout !== lingerIdleMs) socket.setTimeout(lingerIdleMs)
    } else if (partial.length > 0) {
      app.log.warn({ connections: partial.length }, 'the shutdown cuts unfinished lists and bodies')
      for (const socket of partial) socket.destroy()
    }
  }

  app.addHook('preClose', (done) => {
    // A response that has begun can no longer announce that it is the last of its connection.
    app.server.keepAliveTimeout = 1
    for (const { _httpMessage: response } of sockets) if (response) response.shouldKeepAlive = false
    closePartial()
    const timer = setInterval(closePartial, 100)
    app.server.once('close', () => clearInterval(timer))
    done()
  })
}

/** Whether a response or a body has begun and is not complete. */
function isPartial ({ _httpMessage: response, writableLength }: HttpSocket): boolean {
  return response?.headersSent || writableLength > 0 || response?.req.complete === false
}
