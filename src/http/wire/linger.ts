// Ends a connection so that the client can read the last response (nginx: lingering close).
import type { Socket } from 'node:net'

/** How long a closing connection may have no traffic, and how long it may exist at all. */
export const lingerIdleMs = 2000
const lingerMs = 5000

/** Ends the service's side, and reads on: unread input would reset the connection. */
export function linger (socket: Socket): void {
  socket.resume().end()
  // After CONNECT, Node does not handle this event.
  socket.setTimeout(lingerIdleMs, () => socket.destroy())
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(timer))
}
