import { connect } from 'node:net'
import { buffer } from 'node:stream/consumers'

export interface RawResponse { status: number, headers: Record<string, string>, body: string }

export interface ExchangeOptions {
  /** The indexes of the responses to HEAD requests. These responses have no body. */
  heads?: number[]
  halfClose?: boolean
}

/**
 * Sends the parts in order on a new socket, and reads until the service closes the socket. Calls and awaits a
 * part that is a function. Rejects when the socket is reset, or when a response is not complete.
 */
export async function exchange (
  address: string, parts: Array<string | Buffer | (() => Promise<unknown>)>,
  { heads = [], halfClose = false }: ExchangeOptions = {}
): Promise<RawResponse[]> {
  const { hostname, port } = new URL(address)
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  const received = buffer(socket)
  // Prevent an unhandled rejection before the code below awaits this promise.
  received.catch(() => {})
  for (const part of parts) {
    if (typeof part === 'function') await part()
    else socket.write(part)
  }
  if (halfClose) socket.end()
  return parseResponses(await received, heads)
}

/** Sends each request after the response to the one before. The last response must close the connection. */
export async function exchangeInTurn (
  address: string, requests: string[], heads: number[] = []
): Promise<RawResponse[]> {
  const { hostname, port } = new URL(address)
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true })
  const [reader, responses]: [ResponseReader, RawResponse[]] = [new ResponseReader(), []]
  socket.write(requests[0] as string)
  for await (const chunk of socket) {
    reader.push(chunk)
    for (let response; (response = reader.take(heads.includes(responses.length))) !== undefined;) {
      responses.push(response)
      const next = requests[responses.length]
      if (next !== undefined) socket.write(next)
    }
  }
  return responses
}

/** Throws if a response is incomplete, or if `bytes` contains anything except responses. */
export function parseResponses (bytes: Buffer, heads: number[] = []): RawResponse[] {
  const reader = new ResponseReader()
  reader.push(bytes)
  const responses: RawResponse[] = []
  for (;;) {
    const response = reader.take(heads.includes(responses.length))
    if (response === undefined) break
    responses.push(response)
  }
  if (reader.isMidway) throw new Error(`response ${responses.length} is incomplete`)
  return responses
}

/** Parses responses that arrive in parts. */
export class ResponseReader {
  /** Bytes that are not parsed yet, as latin1. */
  #text = ''
  #response: Generator<undefined, RawResponse> | undefined

  push (bytes: Buffer): void {
    this.#text += bytes.toString('latin1')
  }

  /** Whether a response has begun to arrive. */
  get isMidway (): boolean {
    return this.#response !== undefined || this.#text !== ''
  }

  /** Returns the next response, or undefined if it is incomplete. Throws if the bytes are not a response. */
  take (isHead: boolean): RawResponse | undefined {
    if (!this.isMidway) return undefined
    this.#response ??= this.#read(isHead)
    const { done, value } = this.#response.next()
    if (!done) return undefined
    this.#response = undefined
    return value
  }

  /** Yields when the next bytes have not arrived. */
  * #read (isHead: boolean): Generator<undefined, RawResponse> {
    const head = yield * this.#until('\r\n\r\n')
    const [, code, lines = ''] = /^HTTP\/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n$/.exec(head) ?? []
    if (code === undefined) throw new Error(`not an HTTP response: ${JSON.stringify(head.slice(0, 200))}`)
    const fields = [...lines.matchAll(/([^:]+): (.*)\r\n/g)]
    const headers = Object.fromEntries(fields.map(([, name = '', value = '']) => [name.toLowerCase(), value]))
    if (Object.keys(headers).length < fields.length) throw new Error(`a header appears twice: ${lines}`)
    const status = Number(code)
    const hasBody = status >= 200 && status !== 204 && !isHead
    const isChunked = headers['transfer-encoding'] === 'chunked'
    const length = Number(headers['content-length'])
    if (hasBody && !isChunked && Number.isNaN(length)) throw new Error(`a response without a length: ${head}`)
    const body = hasBody ? isChunked ? yield * this.#chunks() : yield * this.#bytes(length) : ''
    return { status, headers, body: Buffer.from(body, 'latin1').toString() }
  }

  * #chunks (): Generator<undefined, string> {
    for (let body = ''; ;) {
      const line = yield * this.#until('\r\n')
      const size = /^([0-9a-f]+)\r\n$/i.exec(line)?.[1]
      if (size === undefined) throw new Error(`not a chunk: ${line.slice(0, 50)}`)
      const chunk = yield * this.#bytes(parseInt(size, 16))
      const end = yield * this.#bytes(2)
      if (end !== '\r\n') throw new Error(`not the end of a chunk: ${end}`)
      if (chunk === '') return body
      body += chunk
    }
  }

  * #bytes (count: number): Generator<undefined, string> {
    const parts: string[] = []
    for (let missing = count; missing > 0;) {
      const part = this.#text.slice(0, missing)
      this.#text = this.#text.slice(part.length)
      parts.push(part)
      missing -= part.length
      if (missing > 0) yield
    }
    return parts.join('')
  }

  /** Takes the bytes up to and including the first `end`. */
  * #until (end: string): Generator<undefined, string> {
    while (!this.#text.includes(end)) yield
    return yield * this.#bytes(this.#text.indexOf(end) + end.length)
  }
}
