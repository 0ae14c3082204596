// A strict parser of HTTP/1.1 requests (RFC 9112). The parser shares no code with Node or the service: an
// error in shared code would remain unnoticed. If the RFC leaves a choice, the parser rejects what Node
// rejects: bare LF, folded headers, whitespace before chunk extensions, and framing fields in trailers.

export interface Request {
  method: string
  target: string
  version: string
  /** Names are in lower case. */
  headers: Array<[name: string, value: string]>
  /** The end of the body is unclear, so the service must reject the request and close the connection. */
  hasBadFraming: boolean
  isChunked: boolean
  body: Buffer
  trailers: Array<[name: string, value: string]>
}

/** What follows the complete requests. */
export interface Tail {
  /** `clean`: nothing. `closed`: the last complete request ends the connection. */
  kind: 'clean' | 'closed' | 'incomplete' | 'malformed'
  /** The head of the request with an incomplete or malformed body. */
  head?: Request
}

export interface Parsed { requests: Request[], tail: Tail }

const maxHeadBytes = 16 * 1024
const maxHeaders = 1000
const token = String.raw`[!#$%&'*+.^_\`|~\w-]+`
// HTTP/0.9 has no version in the line. Node's parser accepts this line, and the service rejects the request.
const requestLine = new RegExp(String.raw`^(${token}) +([!-~]+)(?: +HTTP/(\d\.\d))?$`)
const fieldLine = new RegExp(String.raw`^(${token}):[ \t]*([\t -~\x80-\xFF]*)$`)
const quoted = String.raw`"(?:[\t !#-[\]-~\x80-\xFF]|\\[\t -~\x80-\xFF])*"`
const chunkLine = new RegExp(`([\\da-f]+)(?:;${token}(?:=(?:${token}|${quoted}))?)*\\r\\n`, 'iy')

export function parseRequests (bytes: Buffer): Parsed {
  const text = bytes.toString('latin1')
  const requests: Request[] = []
  for (let at = 0; ;) {
    while (text[at] === '\r' || text[at] === '\n') at++
    if (at === text.length) return { requests, tail: { kind: 'clean' } }
    const headEnd = text.indexOf('\r\n\r\n', at)
    if (headEnd < 0) return { requests, tail: { kind: 'incomplete' } }
    const head = parseHead(text.slice(at, headEnd))
    if (head === undefined) return { requests, tail: { kind: 'malformed' } }
    const end = readBody(head, bytes, text, headEnd + 4)
    if (typeof end === 'string') return { requests, tail: { kind: end, head } }
    requests.push(head)
    if (endsConnection(head)) return { requests, tail: { kind: 'closed' } }
    at = end
  }
}

function parseHead (text: string): Request | undefined {
  const [first = '', ...lines] = text.split('\r\n')
  const [, method, target, version = '0.9'] = requestLine.exec(first) ?? []
  const headers = parseFields(lines)
  if (method === undefined || target === undefined || headers === undefined ||
    text.length > maxHeadBytes || headers.length > maxHeaders) return undefined
  const valuesOf = (wanted: string) => headers.filter(([name]) => name === wanted).map(([, value]) => value)
  const [lengths, codings] = [valuesOf('content-length'), valuesOf('transfer-encoding')]
  const hasBadFraming = lengths.length + codings.length > 1 ||
    lengths.some((length) => !/^\d+$/.test(length) || BigInt(length) >= 2n ** 64n) ||
    codings.some((coding) => version !== '1.1' || !/^chunked$/i.test(coding))
  const isChunked = codings.length > 0
  return { method, target, version, headers, hasBadFraming, isChunked, body: Buffer.alloc(0), trailers: [] }
}

function parseFields (lines: string[]): Array<[string, string]> | undefined {
  const fields = lines.map((line) => fieldLine.exec(line))
  if (fields.includes(null)) return undefined
  return fields.map((field) => [field?.[1]?.toLowerCase() ?? '', field?.[2]?.replace(/[ \t]+$/, '') ?? ''])
}

/** Sets the body and the trailers. Returns the end of the request, or why the request has no end. */
function readBody (request: Request, bytes: Buffer, text: string, start: number): number | Tail['kind'] {
  if (request.hasBadFraming || request.method === 'CONNECT') return start
  if (request.isChunked) return readChunks(request, bytes, text, start)
  const end = start + Number(request.headers.find(([name]) => name === 'content-length')?.[1] ?? 0)
  if (end > bytes.length) return 'incomplete'
  request.body = bytes.subarray(start, end)
  return end
}

function readChunks (request: Request, bytes: Buffer, text: string, start: number): number | Tail['kind'] {
  const parts: Buffer[] = []
  for (let at = start; ;) {
    chunkLine.lastIndex = at
    const [line, digits] = chunkLine.exec(text) ?? []
    if (line === undefined) return text.includes('\r\n', at) ? 'malformed' : 'incomplete'
    const size = BigInt(`0x${digits}`)
    if (size >= 2n ** 64n) return 'malformed'
    at += line.length
    if (size === 0n) {
      request.body = Buffer.concat(parts)
      return readTrailers(request, text, at)
    }
    const end = at + Number(size)
    const newline = text.slice(end, end + 2)
    if (newline !== '\r\n') return '\r\n'.startsWith(newline) ? 'incomplete' : 'malformed'
    parts.push(bytes.subarray(at, end))
    at = end + 2
  }
}

function readTrailers (request: Request, text: string, start: number): number | Tail['kind'] {
  if (text.startsWith('\r\n', start)) return start + 2
  const end = text.indexOf('\r\n\r\n', start)
  if (end < 0) return 'incomplete'
  const trailers = parseFields(text.slice(start, end).split('\r\n'))
  if (trailers === undefined) return 'malformed'
  if (trailers.some(([name]) => name === 'content-length' || name === 'transfer-encoding')) return 'malformed'
  request.trailers = trailers
  return end + 4
}

/** Returns the elements of a header that is a list, in lower case. */
export const elementsOf = (fields: Array<[string, string]>, wanted: string) => fields
  .filter(([name]) => name === wanted)
  .flatMap(([, value]) => value.toLowerCase().split(',').map((element) => element.trim()))

/** Returns whether the response to `request` must be the last one of its connection. */
export function endsConnection ({ method, version, headers, hasBadFraming }: Request): boolean {
  // The service, like Node's parser, gives both headers the same meaning.
  const options = ['connection', 'proxy-connection'].flatMap((name) => elementsOf(headers, name))
  return hasBadFraming || method === 'CONNECT' || headers.some(([name]) => name === 'upgrade') ||
    options.includes('close') || (version !== '1.1' && !options.includes('keep-alive'))
}
