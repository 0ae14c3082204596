// Starts one request of a connection at a time: pipelined requests wait for the responses before them
// (RFC 9112, section 9.3.2).
import type { IncomingMessage, Server } from 'node:http'
import { Socket } from 'node:net'
import { discardInput } from './lingering-close.ts'
import type { HttpSocket } from './node-internals.ts'

/** Requests that may wait on a connection. One chunk of 64 KiB can have thousands. */
const maxPipelined = 16

/** Call this before the server listens. */
export function serializePipelining (server: Server): void {
  server.on('connection', serializeConnection)
}

/** While requests wait the service reads nothing more, so that neither requests nor bodies pile up. */
function serializeConnection (socket: HttpSocket): void {
  const parser = socket.parser as NonNullable<HttpSocket['parser']>
  const begin = parser.onIncoming
  const waiting: Array<[request: IncomingMessage, keepAlive: boolean]> = []
  let isFull = false

  parser.onIncoming = (request, mayStay) => {
    // The parser discards the bytes that follow an Upgrade header in the same chunk.
    const keepAlive = mayStay && (!request.upgrade || isAlone(parser.getCurrentBuffer()))
    if (!socket._httpMessage || request.method === 'CONNECT') return begin(request, keepAlive)
    // Otherwise Node would hand the connection over to an upgrade.
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
  // Node resumes reading whenever a part of the response has been sent.
  socket.resume = () => waiting.length > 0 ? socket : Socket.prototype.resume.call(socket)

  function next (): void {
    const [request, keepAlive] = waiting.shift() as (typeof waiting)[0]
    const isLast = waiting.length === 0
    // The previous response was the connection's last. The client knows that these requests had no effect.
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

/** Whether a chunk ends with the only head in it. */
const isAlone = (chunk: Buffer) => chunk.indexOf('\r\n\r\n') === chunk.length - 4
