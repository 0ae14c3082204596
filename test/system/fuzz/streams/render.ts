// Turns a stream into segments of bytes.
import type { Item, Pause, Stream } from './stream.ts'

export interface Segment { bytes: Buffer, pause: Pause }

/** Limits the number of segments, because each segment takes time. */
const maxSegments = 200

/** Returns the segments of a stream. A pause follows its segment. */
export function render (stream: Stream, token: string, largeToken: string): Segment[] {
  const cuts = new Map<number, Pause>()
  let text = ''
  for (const [index, item] of stream.items.entries()) {
    // With the number, each create has another name.
    const fill = (part: string) => part.replaceAll('@number', `${10 + index}`)
      .replaceAll('@token', token).replaceAll('@large', largeToken)
    const itemText = editOf(textOf(item, fill), item.edit).repeat(item.times)
    const headEnd = itemText.indexOf('\r\n\r\n') + 4
    for (const { item: cutItem, place, at, before, after, pause } of stream.cuts) {
      if (cutItem % stream.items.length !== index) continue
      const within = { headEnd, end: itemText.length, inside: Math.floor(at * itemText.length / 1000) }[place]
      cuts.set(text.length + within - before, pause).set(text.length + within + after, pause)
    }
    text += itemText
  }
  const bytes = Buffer.from(text, 'latin1').subarray(0, Math.ceil(text.length * stream.sentPart / 1000))
  const step = Math.max(stream.segmentBytes ?? Infinity, bytes.length / maxSegments)
  for (let at = step; at < bytes.length; at += step) cuts.set(Math.ceil(at), 'turn')
  const places = [...cuts.keys()].filter((at) => at > 0 && at < bytes.length).sort((a, b) => a - b)
  return [0, ...places].map((start, index) => {
    const end = places[index] ?? bytes.length
    return { bytes: bytes.subarray(start, end), pause: cuts.get(end) ?? 'none' }
  })
}

function textOf (item: Item, fill: (part: string) => string): string {
  const { before, method, target, version, fields, body } = item
  const head = `${before}${method} ${target} HTTP/${version}\r\nHost: x\r\n` +
    fields.map((field) => `${fill(field)}\r\n`).join('')
  if (body === undefined) return `${head}\r\n`
  const text = fill(body.text)
  const { chunks } = body
  if (chunks === undefined) return `${head}Content-Length: ${text.length}\r\n\r\n${text}`
  let rest = text
  const parts = [...chunks.sizes, text.length].map((size) => {
    const part = rest.slice(0, size)
    rest = rest.slice(size)
    return part
  })
  const chunkTexts = parts.filter((part) => part !== '')
    .map((part) => `${part.length.toString(16)}${chunks.extension}\r\n${part}\r\n`)
  const trailers = chunks.trailers.map((trailer) => `${trailer}\r\n`)
  return `${head}Transfer-Encoding: chunked\r\n\r\n` +
    [...chunkTexts, `0${chunks.extension}\r\n`, ...trailers, '\r\n'].join('')
}

function editOf (text: string, edit: Item['edit']): string {
  if (edit === undefined) return text
  const at = Math.floor(edit.at * text.length / 1000)
  return text.slice(0, at) + edit.inserted + text.slice(at + edit.removed)
}
