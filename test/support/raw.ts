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

/** Throws if a response is incomplete, or if `bytes` contains anything except responses. */
export function parseResponses (bytes: Buffer, heads: number[] = []): RawResponse[] {
  const responses: RawResponse[] = []
  for (let rest = bytes.toString('latin1'); rest !== '';) {
    const [head = '', code, lines = ''] =
      /^HTTP\/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n/.exec(rest) ?? []
    if (head === '') throw new Error(`not an HTTP response: ${JSON.stringify(rest.slice(0, 200))}`)
    rest = rest.slice(head.length)
    const fields = [...lines.matchAll(/([^:]+): (.*)\r\n/g)]
    const headers = Object.fromEntries(fields.map(([, name = '', value = '']) => [name.toLowerCase(), value]))
    if (Object.keys(headers).length < fields.length) throw new Error(`a header appears twice: ${lines}`)
    const status = Number(code)
    const hasBody = status >= 200 && status !== 204 && !heads.includes(responses.length)
    const length = hasBody ? Number(headers['content-length']) : 0
    let body
    if (hasBody && headers['transfer-encoding'] === 'chunked') [body, rest] = takeChunks(rest)
    else if (length <= rest.length) [body, rest] = [rest.slice(0, length), rest.slice(length)]
    else throw new Error(`content-length is ${headers['content-length']}, the rest ${rest.length}`)
    responses.push({ status, headers, body: Buffer.from(body, 'latin1').toString() })
  }
  return responses
}

function takeChunks (text: string): [body: string, rest: string] {
  let body = ''
  for (;;) {
    const [line = '', size = ''] = /^([0-9a-f]+)\r\n/i.exec(text) ?? []
    const end = line.length + parseInt(size, 16)
    if (text.slice(end, end + 2) !== '\r\n') throw new Error(`not a chunk: ${text.slice(0, 50)}`)
    body += text.slice(line.length, end)
    text = text.slice(end + 2)
    if (end === line.length) return [body, text]
  }
}
