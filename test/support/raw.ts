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
    const taken = takeResponse(rest, heads.includes(responses.length))
    if (taken === undefined) throw new Error(`an incomplete response: ${JSON.stringify(rest.slice(0, 200))}`)
    responses.push(taken.response)
    rest = taken.rest
  }
  return responses
}

/**
 * Takes the first response off `text`, in which each character is a byte. Returns undefined if the response is not
 * complete. Throws if `text` does not begin with a response.
 */
export function takeResponse (text: string, isHead: boolean): { response: RawResponse, rest: string } | undefined {
  const headEnd = text.indexOf('\r\n\r\n') + 4
  if (headEnd < 4) {
    if ('HTTP/1.1 '.startsWith(text.slice(0, 9))) return undefined
    throw new Error(`not an HTTP response: ${JSON.stringify(text.slice(0, 200))}`)
  }
  const [head, code, lines = ''] =
    /^HTTP\/1\.1 (\d{3}) [^\r\n]*\r\n((?:[^\r\n]+\r\n)*)\r\n$/.exec(text.slice(0, headEnd)) ?? []
  if (head === undefined) throw new Error(`not an HTTP response: ${JSON.stringify(text.slice(0, 200))}`)
  const fields = [...lines.matchAll(/([^:]+): (.*)\r\n/g)]
  const headers = Object.fromEntries(fields.map(([, name = '', value = '']) => [name.toLowerCase(), value]))
  if (Object.keys(headers).length < fields.length) throw new Error(`a header appears twice: ${lines}`)
  const status = Number(code)
  const hasBody = status >= 200 && status !== 204 && !isHead
  const content = hasBody && headers['transfer-encoding'] === 'chunked'
    ? takeChunks(text, headEnd)
    : takeBytes(text, headEnd, hasBody ? Number(headers['content-length']) : 0)
  if (content === undefined) return undefined
  const body = Buffer.from(content.body, 'latin1').toString()
  return { response: { status, headers, body }, rest: text.slice(content.end) }
}

function takeBytes (text: string, start: number, length: number) {
  const end = start + length
  if (Number.isNaN(end)) throw new Error('a response without a length')
  return end <= text.length ? { body: text.slice(start, end), end } : undefined
}

function takeChunks (text: string, start: number): { body: string, end: number } | undefined {
  let body = ''
  for (let at = start; ;) {
    const lineEnd = text.indexOf('\r\n', at)
    if (lineEnd < 0) return undefined
    const line = text.slice(at, lineEnd)
    if (!/^[0-9a-f]+$/i.test(line)) throw new Error(`not a chunk: ${line.slice(0, 50)}`)
    const end = lineEnd + 2 + parseInt(line, 16)
    if (text.length < end + 2) return undefined
    if (text.slice(end, end + 2) !== '\r\n') throw new Error(`not a chunk: ${text.slice(at, at + 50)}`)
    body += text.slice(lineEnd + 2, end)
    at = end + 2
    if (end === lineEnd + 2) return { body, end: at }
  }
}
