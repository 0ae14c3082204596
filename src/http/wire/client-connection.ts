// The state of a client connection. Runs one request at a time. The service ignores a request that arrives
// before the response to the request before it, and closes the connection after that response. The client may
// send the ignored request again on a new connection (RFC 9112, section 9.3.2).
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'

/** How long a closing connection may have no traffic, and how long it may exist at all. */
const [lingerIdleMs, lingerMs] = [2000, 5000]
/** Beyond this number, the service destroys the connection: Node keeps the ignored requests in memory. */
const maxIgnored = 100

export class ClientConnection {
  /** The response in flight: from the head of its request until the system has its last byte. */
  response: ServerResponse | undefined
  /** Read at once: Node then knows the address even after the client has gone. */
  readonly remoteAddress: string | undefined
  readonly #socket: Socket
  /** Whether the response in flight is the last one, or the connection is closing. */
  #isEnding = false
  #ignored = 0

  constructor (socket: Socket) {
    this.#socket = socket
    this.remoteAddress = socket.remoteAddress
    // Node calls this method after a response with `Connection: close`. The original does not linger.
    socket.destroySoon = () => this.end()
  }

  /** Call this when the head of a request has arrived. Returns whether the request may run. */
  accept (request: IncomingMessage, response: ServerResponse): boolean {
    if (this.response !== undefined || this.#isEnding) {
      this.#ignore(request)
      return false
    }
    this.response = response.once('close', () => {
      this.response = undefined
      if (this.#isEnding) this.#linger()
    })
    return true
  }

  #ignore (request: IncomingMessage): void {
    this.end()
    request.resume()
    if (++this.#ignored > maxIgnored) this.#socket.destroy()
    // Stop reading until the response ends. Within the current chunk, Node would resume the socket.
    process.nextTick(() => { if (this.response !== undefined) this.#socket.pause() })
  }

  /** Closes the connection after the response in flight, or now. */
  end (): void {
    this.#isEnding = true
    if (this.response === undefined) this.#linger()
    else if (!this.response.headersSent) this.response.setHeader('connection', 'close')
  }

  /** Closes the service's side, and reads on: unread input would reset the connection (RFC 9112, 9.6). */
  #linger (): void {
    if (!this.#socket.writable) return
    this.#socket.resume().end().setTimeout(lingerIdleMs)
    const timer = setTimeout(() => this.#socket.destroy(), lingerMs)
    this.#socket.once('close', () => clearTimeout(timer))
  }

  /** Call this for malformed or late input. `reject` writes an error response if no response is in flight. */
  fail (error: Error, reject: () => void): void {
    // The connection is closing.
    if (!this.#socket.writable) return
    const { response } = this
    if (response === undefined) reject()
    // Otherwise the fault is behind the request, so the request still gets its response.
    else if (!response.req.complete) failBody(response.req, error)
    this.end()
  }

  /** Call this when the connection has had no traffic for the time of its timeout. */
  timeOut (): void {
    const isServiceSlow = this.response?.req.complete === true && this.#socket.writableLength === 0
    if (!isServiceSlow) this.#socket.destroy()
  }

  /** Call this for a shutdown. Does not wait for a client that stalls. */
  stop (): void {
    this.end()
    this.#socket.setTimeout(lingerIdleMs)
  }
}

/** Passes the error to the reader of the body, as soon as there is one. */
function failBody (request: IncomingMessage, error: Error): void {
  const fail = () => { if (request.listenerCount('error') > 0) request.emit('error', error) }
  if (request.readableFlowing) fail()
  else request.once('resume', fail)
}
