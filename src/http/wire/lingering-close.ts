// Keeps reading from a connection after its last response. Closing a connection with unread input would reset
// the connection, and the client could lose the response.
import { Socket } from 'node:net'
import type { HttpSocket } from './node-internals.ts'

/** How long a connection may have no traffic before the service destroys the connection. */
export const lingerIdleMs = 2000
const lingerMs = 5000

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
  socket.removeAllListeners('data').removeAllListeners('end')
  socket._paused = false
  // Read even while pipelined requests wait for their turn.
  socket.resume = Socket.prototype.resume
  socket.resume()
  // If Node's HTTP server has paused the socket, `resume` alone does not make the system read again.
  socket._read(0)
}
