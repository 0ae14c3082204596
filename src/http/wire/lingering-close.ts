// Keeps reading from a connection after its last response. Closing a connection with unread input would reset
// the connection, and the client could lose the response.
import type { Socket } from 'node:net'
import type { Readable } from 'node:stream'
import { clientWork } from '../../scheduling/tick-limiter.ts'
import type { HttpSocket } from './node-internals.ts'

/** How long a connection may have no traffic before the service destroys the connection. */
export const lingerIdleMs = 2000
const lingerMs = 5000

/** The cost of a discarded chunk in the tick limiter. A tick's budget covers eight chunks of up to 64 KiB. */
const chunkBytes = 32_768

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
  discardStream(socket, socket)
  socket.resume()
}

/** Discards input in small steps. Otherwise a request could wait while Node reads from 100 other clients. */
export function discardStream (stream: Readable, { remoteAddress }: Socket): void {
  stream.on('data', () => {
    stream.pause()
    clientWork.run(`discard ${remoteAddress}`, chunkBytes, () => stream.resume())
  })
}
