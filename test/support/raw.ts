import { once } from 'node:events'
import { connect } from 'node:net'

export interface RawResponse {
  status: number
  headers: Record<string, string>
  body: string
}

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
  const received: Buffer[] = []
  socket.on('data', (chunk: Buffer) => { received.push(chunk) })
  // An error before 'end' rejects `ended`. Ignore later errors: the service may not read all parts.
  socket.on('error', () => {})
  const ended = once(socket, 'end')
  // Prevent an unhandled rejection before the code below awaits this promise.
  ended.catch(() => {})
  for (const part of parts) {
    if (typeof part === 'function') await part()
    else socket.write(part)
  }
  if (halfClose) socket.end()
  await ended
  socket.end()
  return parseResponses(Buffer.concat(received), heads)
}

/** Throws if a response is incomplete, or if `bytes` contains anything except responses. */
export function parseResponses (bytes: Buffer, heads: number[] = []): RawResponse[] {
  const responses: RawResponse[] = []
  for (let rest = bytes.toString('latin1'); rest !== '';) {
    const [head, status, lines] = /^HTTP\/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n/.exec(rest) ?? []
    if (head === undefined) throw new Error(`not an HTTP response: ${JSON.stringify(rest.slice(0, 200))}`)
    rest = rest.slice(head.length)
    const headers: Record<string, string> = {}
    for (const [, name, value] of (lines as string).matchAll(/([^:]+): (.*)\r\n/g)) {
      const key = (name as string).toLowerCase()
      if (key in headers) throw new Error(`the header ${key} appears twice`)
      headers[key] = value as string
    }
    const bodyless = Number(status) < 200 || status === '204' || heads.includes(responses.length)
    let body = ''
    if (!bodyless && headers['transfer-encoding'] === 'chunked') [body, rest] = takeChunks(rest)
    else if (!bodyless) {
      const length = Number(headers['content-length'])
      if (!(length <= rest.length)) {
        throw new Error(`content-length is ${headers['content-length']}, the rest ${rest.length}`)
      }
      body = rest.slice(0, length)
      rest = rest.slice(length)
    }
    responses.push({ status: Number(status), headers, body: Buffer.from(body, 'latin1').toString() })
  }
  return responses
}

function takeChunks (text: string): [body: string, rest: string] {
  let body = ''
  for (;;) {
    const [line, size] = /^([0-9a-f]+)\r\n/i.exec(text) ?? []
    if (line === undefined) throw new Error(`not a chunk: ${JSON.stringify(text.slice(0, 50))}`)
    const start = line.length
    const end = start + parseInt(size as string, 16)
    if (text.slice(end, end + 2) !== '\r\n') throw new Error('a chunk has a wrong length')
    body += text.slice(start, end)
    text = text.slice(end + 2)
    if (end === start) return [body, text]
  }
}
