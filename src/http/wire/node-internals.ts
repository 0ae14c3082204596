// The private properties of Node's client connections that this service uses.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

export type HttpSocket = Socket & {
  /** The response in flight. */
  _httpMessage?: ServerResponse | null
  /** Node sets this flag when it pauses the socket. After a response Node clears the flag and reads on. */
  _paused?: boolean
  /** Absent after a CONNECT request and after the end of the connection. */
  parser?: {
    /** The request that was parsed last. */
    incoming: IncomingMessage | null
    /** When this returns 2, the parser discards the rest of the chunk. */
    onIncoming: (request: IncomingMessage & { upgrade?: boolean }, keepAlive: boolean) => 0 | 1 | 2
    resume (): void
    /** The chunk that is being parsed. */
    getCurrentBuffer (): Buffer
  } | null
}
