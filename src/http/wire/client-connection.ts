// The state of a client connection. Runs the requests one at a time (RFC 9112, section 9.3.2).
import { AsyncResource } from 'node:async_hooks'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import { isRead } from '../request-checks.ts'
import { linger, lingerIdleMs } from './linger.ts'

export interface Behavior {
  run: (request: IncomingMessage, response: ServerResponse) => void
  /** Whether the service must run no later request of the connection. */
  isLast: (request: IncomingMessage) => boolean
}

/** Writes an error response to the socket, then calls `done`. No other response is in flight. */
export type Reject = (done: () => void) => void

/**
 * The states follow each other in this order:
 * - `open`: requests run in the order of their arrival.
 * - `ending`: the requests that have arrived still run. Later ones are ignored.
 * - `closing`: all requests have their responses. The service ignores all input.
 */
type State = 'open' | 'ending' | 'closing'

const maxWaiting = 16
/** Beyond this number, the service destroys the connection: Node keeps the ignored requests in memory. */
const maxIgnored = 100

export class ClientConnection {
  readonly socket: Socket
  /** Read at once: Node then knows the address even after the client has gone. */
  readonly remoteAddress: string | undefined
  /** The id of the request in flight, for the log. Empty while the request waits for its turn. */
  requestId = ''
  readonly #behavior: Behavior
  #state: State = 'open'
  /** The response in flight. */
  #response: ServerResponse | undefined
  /** The last request that got its response before its body had arrived. */
  #unread: IncomingMessage | undefined
  #waiting: Array<{ response: ServerResponse, start: () => void }> = []
  #ignored = 0
  #hasFailed = false
  #reject: Reject | undefined

  constructor (socket: Socket, behavior: Behavior) {
    this.socket = socket
    this.remoteAddress = socket.remoteAddress
    this.#behavior = behavior
    // Node calls this method after the last response. The original does not linger.
    socket.destroySoon = () => this.end()
  }

  /** Call this when the head of a request has arrived. */
  arrive (request: IncomingMessage, response: ServerResponse): void {
    if (this.#waiting.length === maxWaiting) this.end()
    if (this.#state !== 'open') return this.#ignore(request)
    if (this.#behavior.isLast(request)) {
      this.#state = 'ending'
      response.setHeader('connection', 'close')
    }
    const start = () => {
      this.requestId = ''
      this.#response = response.on('close', this.#next)
      this.#behavior.run(request, response)
    }
    if (this.#response === undefined) return start()
    // Without `bind`, the request would run in the asynchronous context of the request before it.
    this.#waiting.push({ response, start: AsyncResource.bind(start) })
    this.#pauseSoon()
  }

  #ignore (request: IncomingMessage): void {
    request.resume()
    if (++this.#ignored > maxIgnored) this.socket.destroy()
    this.#pauseSoon()
  }

  /** Stops reading while a response is in flight. Within the current chunk, Node would resume the socket. */
  #pauseSoon (): void {
    process.nextTick(() => { if (this.#response?.req.complete) this.socket.pause() })
  }

  readonly #next = (): void => {
    const response = this.#response as ServerResponse
    this.#response = undefined
    this.#unread = response.req.complete ? undefined : response.req
    const isLast = response.getHeader('connection') === 'close'
    if (isLast) for (const { response: { req } } of this.#waiting.splice(0)) req.resume()
    const next = this.#waiting.shift()
    if (this.#waiting.length === 0 && this.socket.isPaused()) this.socket.resume()
    if (this.#state === 'closing' || this.socket.destroyed) return
    if (next !== undefined) next.start()
    else if (this.#reject !== undefined && !isLast) this.#rejectWith(this.#reject)
    else if (this.#state === 'ending') this.#close()
  }

  /** Call this when Node starts to read the body of a request with `Expect: 100-continue`. */
  continue (response: ServerResponse): void {
    // Node also discards the bodies of ignored requests, and the rest of a body after the response.
    if (response === this.#response && !response.headersSent) response.writeContinue()
  }

  /** Makes the response to the last request that has arrived the last response of the connection. */
  end (): void {
    if (this.#state !== 'open') return
    this.#state = 'ending'
    const last = this.#last()
    if (last === undefined) this.#close()
    else if (!last.headersSent) last.setHeader('connection', 'close')
  }

  /** Returns the response to the last request that has arrived, if that response is not complete. */
  #last (): ServerResponse | undefined {
    return this.#waiting.at(-1)?.response ?? this.#response
  }

  /** Whether the last request that has arrived is incomplete, and has no complete response. */
  get isIncomplete (): boolean {
    return this.#last()?.req.complete === false
  }

  /** Drops the last waiting request if it is incomplete. An unread body would stop the lingering. */
  #dropIncomplete (): void {
    if (this.isIncomplete) this.#waiting.pop()?.response.req.resume()
  }

  #rejectWith (reject: Reject): void {
    this.#state = 'closing'
    // If the client ended its side before `reject` responds, Node would end the socket.
    this.socket.pause()
    reject(() => this.#close())
  }

  #close (): void {
    this.#state = 'closing'
    if (!this.socket.destroyed) linger(this.socket)
  }

  /** Call this for malformed input. Calls `reject` unless the error belongs to the request in flight. */
  fail (error: Error, reject: Reject): void {
    const response = this.#response
    if (this.#state === 'closing' || this.#hasFailed || !this.socket.writable) return
    this.#hasFailed = true
    if (response?.req.complete) {
      // The error is behind this request. Complete requests still get their responses.
      if (this.isIncomplete || this.#state === 'open') this.#reject = reject
      this.#dropIncomplete()
      this.#state = 'ending'
    } else if (response !== undefined) {
      // The error is in the body of this request.
      this.end()
      failBody(response.req, error)
    } else if (this.#unread?.complete === false) this.end()
    else this.#rejectWith(reject)
  }

  /** Call this for a late request. Node reports each request once. */
  expire (error: Error, reject: Reject): void {
    if (this.#response?.req.complete) {
      // The client is not to blame: because of the response before, Node may have stopped reading.
      this.#dropIncomplete()
      this.end()
    } else this.fail(error, reject)
  }

  /** Call this for CONNECT. Node has detached its parser and its listeners from the socket. */
  refuseTunnel (reject: Reject): void {
    // An unhandled 'error' event would end the process.
    this.socket.on('error', () => {})
    // Without Node's listeners, a response in flight could stall.
    if (this.#state === 'open' && this.#response === undefined) this.#rejectWith(reject)
    else this.socket.destroy()
  }

  /** Call this when the connection has had no traffic for the time of its timeout. */
  timeOut (): void {
    const isServiceSlow = this.#response?.req.complete === true && this.socket.writableLength === 0
    if (!isServiceSlow) this.socket.destroy()
  }

  /** Call this for a shutdown. Fastify then closes the connection with the next response. */
  stop (): void {
    this.end()
    if (this.#state === 'ending') this.socket.setTimeout(lingerIdleMs)
  }

  /** Call this at the deadline of a shutdown. Returns whether the client still waits for a write. */
  forceClose (): boolean {
    this.socket.destroy()
    const { req, headersSent } = this.#response ?? {}
    return this.requestId !== '' && req?.complete === true && !headersSent && !isRead(req.method)
  }
}

/** Passes the error to the reader of the body, as soon as there is one. */
function failBody (request: IncomingMessage, error: Error): void {
  const fail = () => { if (request.listenerCount('error') > 0) request.emit('error', error) }
  if (request.readableFlowing) fail()
  else request.once('resume', fail)
}
