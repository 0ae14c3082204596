// Ends client connections: after their last response, and during a shutdown.
import { Socket } from 'node:net'
import type { FastifyInstance } from 'fastify'
import type { HttpSocket } from './node-internals.ts'

/** How long a connection may have no traffic before the service destroys the connection. */
const lingerIdleMs = 2000
const lingerMs = 5000

export interface Lifecycle {
  starting?: boolean
  stopping: boolean
  /** From this time of `performance.now()` on, a shutdown cuts unfinished reads and bodies. */
  forceCloseAt?: number
}

/** Reads on: closing with unread input would reset the connection, and the client could lose the response. */
export function lingeringClose (socket: HttpSocket): void {
  if (socket.destroyed) return
  discardInput(socket)
  socket.end()
  socket.setTimeout(lingerIdleMs, () => socket.destroy())
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(timer))
}

/** Discards all further input before Node's parser sees it. */
export function discardInput (socket: HttpSocket): void {
  // Because of a listener for 'data', Node no longer passes the input directly to its parser.
  socket.removeAllListeners('data').removeAllListeners('end').on('data', () => {})
  socket._paused = false
  // Read even while pipelined requests wait for their turn.
  socket.resume = Socket.prototype.resume
  socket.resume()
  // If Node's HTTP server has paused the socket, `resume` alone does not make the system read again.
  socket._read(0)
}

/** `sockets` contains all open connections. */
export function closeOnShutdown (
  app: FastifyInstance, lifecycle: Lifecycle, sockets: ReadonlySet<HttpSocket>
): void {
  // Run before Fastify's own listener, which responds to some malformed requests without running a hook.
  app.server.prependListener('request', (_request, response) => {
    if (lifecycle.stopping) response.shouldKeepAlive = false
  })
  app.addHook('preClose', (done) => {
    for (const { _httpMessage: response } of sockets) if (response) response.shouldKeepAlive = false
    closeConnections()
    // A response that had begun cannot add `Connection: close`. Close its connection after the response.
    const timer = setInterval(closeConnections, 100)
    app.server.once('close', () => clearInterval(timer))
    done()
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
}

/** Whether no request is in flight. Node counts a connection with an incomplete request as active. */
const isIdle = ({ _httpMessage: response, writableEnded, writableLength }: HttpSocket) =>
  !response && !writableEnded && writableLength === 0

const isRead = ({ _httpMessage: response }: HttpSocket) => /^(GET|HEAD)$/.test(String(response?.req.method))

/** Whether the response or the request body has begun but is not complete. */
const isPartial = ({ _httpMessage: response, writableLength }: HttpSocket) =>
  response?.headersSent || writableLength > 0 || response?.req.complete === false
