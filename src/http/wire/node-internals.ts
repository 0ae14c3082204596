// The private properties of Node's client connections that this service uses.
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

export type HttpSocket = Socket & {
  /** The response in flight. */
  _httpMessage?: ServerResponse | null
  /** Whether Node has paused the socket. After a response, Node clears the flag and resumes reading. */
  _paused?: boolean
  /** Absent after the end of the connection. */
  parser?: {
    /** The most recently parsed request. */
    incoming: IncomingMessage | null
    /** If `onIncoming` returns 2, the parser discards the rest of the chunk. */
    onIncoming: (request: IncomingMessage & { upgrade?: boolean }, keepAlive: boolean) => 0 | 1 | 2
    /** The handler for a piece of a request body. Without a handler, the parser skips the body. */
    3: ((piece: Buffer) => void) | undefined
    resume (): void
    /** The chunk that is being parsed. */
    getCurrentBuffer (): Buffer
  } | null
}
