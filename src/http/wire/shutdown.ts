// Ends client connections during a shutdown.
import type { FastifyInstance } from 'fastify'
import { lingeringClose, lingerIdleMs } from './lingering-close.ts'
import type { HttpSocket } from './node-internals.ts'

export interface Lifecycle {
  starting?: boolean
  stopping: boolean
  /** From this time of `performance.now()` on, a shutdown cuts unfinished reads and bodies. */
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
  /** Cuts reads and bodies, which clients can repeat. Cutting writes would leave outcomes unknown. */
  function closeConnections (): void {
    const mustClose = performance.now() >= (lifecycle.forceCloseAt ?? Infinity)
    let connections = 0
    for (const socket of sockets) {
      if (isIdle(socket)) {
        // If the request is incomplete but already has its response, let the client read the response.
        if (socket.parser?.incoming) lingeringClose(socket)
        else socket.destroy()
      } else if (mustClose && (isPartial(socket) || isRead(socket))) {
        connections++
        socket.destroy()
      } else if (isPartial(socket) && socket.timeout !== lingerIdleMs) socket.setTimeout(lingerIdleMs)
    }
    if (connections > 0) app.log.warn({ connections }, 'the shutdown cuts unfinished reads and bodies')
  }

  app.addHook('preClose', (done) => {
    // A response that has begun cannot add `Connection: close`. Close its connection soon after the response.
    app.server.keepAliveTimeout = 1
    for (const { _httpMessage: response } of sockets) if (response) response.shouldKeepAlive = false
    closeConnections()
    const timer = setInterval(closeConnections, 100)
    app.server.once('close', () => clearInterval(timer))
    done()
  })
}

/** Whether no request is in flight. Node counts a connection with an incomplete request as active. */
const isIdle = ({ _httpMessage: response, writableEnded, writableLength }: HttpSocket) =>
  !response && !writableEnded && writableLength === 0

const isRead = ({ _httpMessage: response }: HttpSocket) => /^(GET|HEAD)$/.test(String(response?.req.method))

/** Whether the response or the request body has begun but is not complete. */
function isPartial ({ _httpMessage: response, writableLength }: HttpSocket): boolean {
  return response?.headersSent || writableLength > 0 || response?.req.complete === false
}
