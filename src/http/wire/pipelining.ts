// Runs the pipelined requests of a connection one at a time (RFC 9112, section 9.3.2).
import type { IncomingMessage } from 'node:http'
import { Socket } from 'node:net'
import type { HttpSocket } from './node-internals.ts'

/** How many requests of a connection may wait. A chunk of 64 KiB can contain thousands of requests. */
const maxPipelined = 16

/** Stops reading from the connection while requests wait, so that neither requests nor bodies pile up. */
export function serializePipelining (socket: HttpSocket): void {
  const parser = socket.parser as NonNullable<HttpSocket['parser']>
  const begin = parser.onIncoming
  const waiting: Array<{ request: IncomingMessage, keepAlive: boolean }> = []

  parser.onIncoming = (request, mayStay) => {
    // The parser discards the rest of a chunk after an upgrade request. If bytes may follow, make this
    // response the last. After CONNECT, the bytes in later chunks may be no HTTP either.
    const isLast = request.upgrade && (request.method === 'CONNECT' || !isAlone(parser.getCurrentBuffer()))
    // If `upgrade` stayed true, Node would stop parsing HTTP on the connection.
    request.upgrade = false
    const keepAlive = mayStay && !isLast
    // The last response may end while the parser is still in a chunk with further requests.
    if (socket.writableEnded || waiting.length === maxPipelined) {
      // The parser discards the rest of the chunk, so the last of 16 waiting requests ends the connection.
      for (const last of waiting.slice(maxPipelined - 1)) last.keepAlive = false
      return 2
    }
    if (!socket._httpMessage) return begin(request, keepAlive)
    if (waiting.push({ request, keepAlive }) > 1) return 0
    socket._paused = true
    socket.pause()
    socket._httpMessage.once('finish', next)
    return 0
  }
  // Node calls `resume` whenever a part of the response is sent. Keep the socket paused while requests wait.
  socket.resume = () => waiting.length > 0 ? socket : Socket.prototype.resume.call(socket)

  function next (): void {
    const { request, keepAlive } = waiting.shift() as (typeof waiting)[0]
    // The previous response had `Connection: close`. Do not run the waiting requests.
    if (socket.writableEnded) return
    const isLast = waiting.length === 0
    if (isLast) {
      socket._paused = false
      socket.parser?.resume()
      socket.resume()
    }
    begin(request, keepAlive)
    if (!isLast) socket._httpMessage?.once('finish', next)
  }
}

/** Whether a chunk contains one request head and nothing else. */
const isAlone = (chunk: Buffer) => chunk.indexOf('\r\n\r\n') === chunk.length - 4
