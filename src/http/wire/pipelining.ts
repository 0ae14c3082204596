// One request of a connection at a time: what is sent ahead waits for the answers before it
// (RFC 9112, section 9.3.2).
import type { IncomingMessage, Server } from 'node:http'
import { Socket } from 'node:net'
import { maxPipelined } from '../limits.ts'
import { discardInput, type HttpSocket } from './node-internals.ts'

/** To be called before the server listens. */
export function serializePipelining (server: Server): void {
  server.on('connection', (socket: HttpSocket) => { serializeConnection(socket) })
}

/**
 * Node hands on each request as soon as its head is there, several of them at
 * once. Here it waits without a response, and reading stops: neither further
 * requests nor bodies pile up, beyond what came in the same piece.
 */
function serializeConnection (socket: HttpSocket): void {
  const parser = socket.parser as NonNullable<HttpSocket['parser']>
  const begin = parser.onIncoming
  const waiting: Array<[request: IncomingMessage, keepAlive: boolean]> = []
  let isFull = false

  parser.onIncoming = (request, mayStay) => {
    // The parser drops what follows an offer to upgrade in the same piece, whether it is taken or not.
    const keepAlive = mayStay && (!request.upgrade || isAlone(parser.getCurrentBuffer()))
    if (!socket._httpMessage || request.method === 'CONNECT') return begin(request, keepAlive)
    // Node would take the connection for one that is being upgraded.
    request.upgrade = false
    if (waiting.length === maxPipelined) {
      isFull = true
      // Makes the parser drop the rest of the piece.
      return 2
    }
    if (waiting.push([request, keepAlive]) > 1) return 0
    socket._paused = true
    socket.pause()
    socket._httpMessage.once('finish', next)
    return 0
  }
  // Which Node calls whenever a part of the answer under way is through.
  socket.resume = () => waiting.length > 0 ? socket : Socket.prototype.resume.call(socket)

  function next (): void {
    const [request, keepAlive] = waiting.shift() as (typeof waiting)[0]
    const isLast = waiting.length === 0
    // The answer before was the last: its caller knows that these have not been carried out.
    if (socket.writableEnded) return
    if (isLast && isFull) discardInput(socket)
    else if (isLast) readOn()
    begin(request, keepAlive && !(isLast && isFull))
    if (!isLast) socket._httpMessage?.once('finish', next)
  }

  function readOn (): void {
    socket._paused = false
    socket.parser?.resume()
    socket.resume()
  }
}

/** Whether a piece ends with the only head in it. */
const isAlone = (piece: Buffer) => piece.indexOf('\r\n\r\n') === piece.length - 4
