// What of Node's own properties of a connection is used here, and how one is ended.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { discardStream } from './discard.ts'
import { lingerIdleMs, lingerMs } from '../limits.ts'

/** How a connection stands is only to be had from Node's own properties. */
export type HttpSocket = Socket & {
  /** The response under way. */
  _httpMessage?: ServerResponse | null
  /** Whether the parser is not to ask for more. */
  _paused?: boolean
  /** Gone after a CONNECT and at the end. */
  parser?: {
    /** The newest request. */
    incoming: IncomingMessage | null
    /** 2 makes the parser stop after the head. */
    onIncoming: (request: IncomingMessage & { upgrade?: boolean }, keepAlive: boolean) => 0 | 1 | 2
    resume (): void
    /** The piece that is being parsed. */
    getCurrentBuffer (): Buffer
  } | null
}

/**
 * Ends a connection whose caller may still be sending. Closed at once, with
 * bytes on their way, it would be reset, and the answer lost before it is read.
 */
export function lingeringClose (socket: HttpSocket): void {
  if (socket.destroyed) return
  discardInput(socket)
  socket.end()
  socket.setTimeout(lingerIdleMs, () => socket.destroy())
  const timer = setTimeout(() => socket.destroy(), lingerMs)
  socket.once('close', () => clearTimeout(timer))
}

/** Whatever still comes is no request: Node gets neither the bytes nor their end. */
export function discardInput (socket: HttpSocket): void {
  socket.removeAllListeners('data').removeAllListeners('end')
  // Node would pause it again.
  socket._paused = false
  discardStream(socket, socket)
  socket.resume()
}
