// Node's HTTP server, with a state for each connection. A shutdown cuts no response before its deadline.
import { once } from 'node:events'
import {
  createServer as createNodeServer, type IncomingMessage, type ServerOptions, type ServerResponse
} from 'node:http'
import type { Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { ApiError, errors } from '../../errors.ts'
import { ClientConnection } from './client-connection.ts'

const stopping = new ApiError(errors.STOPPING)

export interface Lifecycle {
  starting?: boolean
  stopping: boolean
  /** A time of `performance.now()`. At this time, a shutdown cuts what is unfinished. */
  forceCloseAt?: number
}

export interface Behavior {
  run: (request: IncomingMessage, response: ServerResponse) => void
  /** Whether the service must run no later request of the connection. */
  isLast: (request: IncomingMessage) => boolean
}

/** `server` closes connections beyond `maxConnections` at once, and emits 'drop'. */
export function createServer (
  { run, isLast }: Behavior, maxConnections: number, options: ServerOptions = {}
) {
  const connections = new Map<Socket, ClientConnection>()

  function arrive (request: IncomingMessage, response: ServerResponse): void {
    const connection = connections.get(request.socket) as ClientConnection
    if (!connection.accept(request, response)) return
    if (isLast(request)) connection.end()
    run(request, response)
  }

  const server = createNodeServer(options, arrive)
    .on('connection', (socket) => {
      connections.set(socket, new ClientConnection(socket))
      socket.once('close', () => connections.delete(socket))
    })
    // Without this listener, Node itself would respond to an unknown expectation.
    .on('checkExpectation', arrive)
    .on('timeout', (socket) => connections.get(socket)?.timeOut())
  Object.assign(server, {
    maxConnections,
    // A client that has closed its sending side still gets its response.
    httpAllowHalfOpen: true,
    // `close` calls this method. The original would destroy connections that are still sending a response.
    closeIdleConnections: () => {}
  })

  return {
    server,
    connections,

    /**
     * Accepts no further connections, and closes each connection after its response. At `forceCloseAt`, cuts
     * the connections that are left. Returns the response in flight of each.
     */
    async shutDown (forceCloseAt = Infinity): Promise<Array<ServerResponse | undefined>> {
      const closed = once(server, 'close')
      server.close()
      for (const connection of connections.values()) connection.stop()
      const deadline = forceCloseAt === Infinity
        ? []
        : [delay(forceCloseAt - performance.now(), undefined, { ref: false })]
      await Promise.race([closed, ...deadline])
      const left = [...connections].filter(([socket]) => !socket.destroyed)
      const responses = left.map(([, { response }]) => response)
      // Not `closed`: the listeners of a response run later.
      await Promise.all(left.map(([socket], index) => new Promise((resolve) => {
        socket.once('close', resolve)
        responses[index]?.destroy(stopping)
        socket.destroy()
      })))
      return responses
    }
  }
}
