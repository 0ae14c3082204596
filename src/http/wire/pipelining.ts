// Starts one request of a connection at a time: pipelined requests wait for the responses to earlier requests
// (RFC 9112, section 9.3.2).
import type { IncomingMessage, Server } from 'node:http'
import { Socket } from 'node:net'
import { discardInput } from './lingering-close.ts'
import type { HttpSocket } from './node-internals.ts'

/** How many requests may wait on a connection. A single chunk of 64 KiB can contain thousands of requests. */
const maxPipelined = 16

/** Call this before the server listens. */
export function serializePipelining (server: Server): void {
  server.on('connection', serializeConnection)
}

/** Stops reading from the connection while requests wait, so that neither requests nor bodies pile up. */
function serializeConnection (socket: HttpSocket): void {
  const parser = socket.parser as NonNullable<HttpSocket['parser']>
  const begin = parser.onIncoming
  const waiting: Array<[request: IncomingMessage, keepAlive: boolean]> = []
  let isFull = false

  parser.onIncoming = (request, mayStay) => {
    // The parser discards all bytes after an upgrade request in its chunk. Close unless the request is alone.
    const keepAlive = mayStay && (!request.upgrade || isAlone(parser.getCurrentBuffer()))
    if (!socket._httpMessage || request.method === 'CONNECT') return begin(request, keepAlive)
    // Otherwise Node would treat the connection as upgraded and stop parsing HTTP.
    request.upgrade = false
    if (waiting.length === maxPipelined) {
      isFull = true
      return 2
    }
    if (waiting.push([request, keepAlive]) > 1) return 0
    socket._paused = true
    socket.pause()
    socket._httpMessage.once('finish', next)
    return 0
  }
  // Node calls this whenever it has sent a part of the response. Don't resume while requests wait.
  socket.resume = () => waiting.length > 0 ? socket : Socket.prototype.resume.call(socket)

  function next (): void {
    const [request, keepAlive] = waiting.shift() as (typeof waiting)[0]
    const isLast = waiting.length === 0
    // The previous response announced the close, so the client knows that the waiting requests never started.
    if (socket.writableEnded) return
    if (isLast && isFull) discardInput(socket)
    else if (isLast) {
      socket._paused = false
      socket.parser?.resume()
      socket.resume()
    }
    begin(request, keepAlive && !(isLast && isFull))
    if (!isLast) socket._httpMessage?.once('finish', next)
  }
}

/** Whether a chunk contains a single request head and nothing after it. */
const isAlone = (chunk: Buffer) => chunk.indexOf('\r\n\r\n') === chunk.length - 4
