// Node's HTTP server, with a state for each connection. Shuts down without cutting a response.
import {
  createServer as createNodeServer, type IncomingMessage, type ServerOptions, type ServerResponse
} from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyBaseLogger } from 'fastify'
import { ClientConnection, type Behavior } from './client-connection.ts'

export interface Lifecycle {
  starting?: boolean
  stopping: boolean
  /** A time of `performance.now()`. At this time, a shutdown cuts what is unfinished. */
  forceCloseAt?: number
}

/** `server` closes connections beyond `maxConnections` at once, and emits 'drop'. */
export function createServer (behavior: Behavior, maxConnections: number, options: ServerOptions = {}) {
  const connections = new Map<Socket, ClientConnection>()
  const connectionOf = (socket: Socket) => connections.get(socket) as ClientConnection
  const arrive = (request: IncomingMessage, response: ServerResponse) =>
    connectionOf(request.socket).arrive(request, response)

  const server = createNodeServer(options, arrive)
    .on('connection', (socket) => {
      const connection = new ClientConnection(socket, behavior)
      connections.set(socket, connection)
      socket.once('close', () => connections.delete(socket))
      // Node reports an incomplete request at the end of the input, but not a request with `Upgrade`.
      socket.once('end', () => {
        if (connection.isIncomplete) server.emit('clientError', new Error('incomplete request'), socket)
      })
    })
    // Without these two listeners, Node itself would respond before the header checks.
    .on('checkExpectation', arrive)
    .on('checkContinue', (request, response) => {
      const connection = connectionOf(request.socket)
      request.once('resume', () => connection.continue(response))
      arrive(request, response)
    })
    .on('timeout', (socket) => connectionOf(socket).timeOut())
  Object.assign(server, {
    maxConnections,
    // A client that has closed its sending side still gets its responses.
    httpAllowHalfOpen: true,
    // `close` calls this method. The original would destroy connections that are still sending a response.
    closeIdleConnections: () => {}
  })

  return {
    server,
    connections: connections as ReadonlyMap<Socket, ClientConnection>,

    /** Accepts no further connections, and ends the others. At `forceCloseAt`, cuts those that are left. */
    async shutDown (log: FastifyBaseLogger, forceCloseAt = Infinity): Promise<void> {
      server.close()
      for (const connection of connections.values()) connection.stop()
      const closed = Array.from(connections.keys(), (socket) =>
        new Promise((resolve) => { socket.once('close', resolve) }))
      const expired = forceCloseAt === Infinity
        ? []
        : [delay(forceCloseAt - performance.now(), undefined, { ref: false })]
      await Promise.race([Promise.all(closed), ...expired])
      let others = 0
      for (const connection of connections.values()) {
        const { requestId: reqId } = connection
        if (connection.forceClose()) log.warn({ reqId }, 'the shutdown cuts a write: its outcome is unknown')
        else others++
      }
      if (others > 0) log.warn({ connections: others }, 'the shutdown cuts unfinished reads and bodies')
    }
  }
}
