/** What a client sends on one connection, and how. */
export interface Stream {
  items: Item[]
  cuts: Cut[]
  /** Splits the stream into segments of about this size. */
  segmentBytes: number | undefined
  /** `late`: the client reads nothing until it has sent everything or awaits responses. */
  reader: 'eager' | 'late' | 'slow'
  /** `stay`: the client ends its side after the last response. `leave` and `reset` await no response. */
  end: 'stay' | 'halfClose' | 'leave' | 'reset'
  /** The pause after the last segment. */
  endPause: Pause
  /** The part of the bytes that the client sends, in thousandths. */
  sentPart: number
}

/** `times` equal requests. The texts contain the placeholders that `render` replaces. */
export interface Item {
  before: string
  method: string
  target: string
  version: string
  fields: string[]
  body: { text: string, chunks: Chunks | undefined } | undefined
  edit: { at: number, removed: number, inserted: string } | undefined
  times: number
}

interface Chunks { sizes: number[], extension: string, trailers: string[] }

/**
 * Two cuts: `before` and `after` bytes from the end of a head, the end of an item, or a place inside an item
 * (`at`, in thousandths). So a segment of a few bytes may contain the end of a head.
 */
export interface Cut {
  item: number
  place: 'headEnd' | 'end' | 'inside'
  at: number
  before: number
  after: number
  pause: Pause
}

/**
 * What the client does between two segments. `none`: writes the next segment in the same tick. `turn`: in the
 * next tick. `responses`: awaits the responses to all complete requests, and `100 Continue` if a head expects
 * it. A number: waits so many milliseconds.
 */
export type Pause = 'none' | 'turn' | 'responses' | number

/** Files of 4.9 MB, more than the socket buffers hold, and of 57 KB. */
export const largeFiles = ['/docs/scalar.js', '/openapi.json']

/** Each user begins with these plants. */
export const seeds = new Map([1n, 2n, 3n].map((id) => [id, { name: `seed ${id}` }]))

/** Streams on an instance of the service that ends during them. */
export interface Shutdown {
  streams: Stream[]
  signal: NodeJS.Signals
  /** The time from the start of the streams to the signal. */
  signalMs: number
  /** The mode of a lock on the plants until `lockMs` after the signal. */
  lock: 'share' | 'access exclusive' | undefined
}

export const lockMs = 3000
