// Sends a stream on a connection of its own, and reads the responses.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { ResponseReader, type RawResponse } from '../../../support/raw.ts'
import { segmentsOf, type Item, type Pause, type Stream } from './items.ts'

/** Some part of a response must arrive within this time, also on a busy machine. */
const patienceMs = 10_000

export interface Observation {
  /** The final responses. `isEarly`: the response arrived before its item was sent. */
  responses: Array<RawResponse & { isEarly: boolean }>
  /** The number of items that are sent completely, and in part. */
  complete: number
  begun: number
  /** The number of first items that each were sent after the response to the item before. */
  inTurn: number
  isMidway: boolean
  /** The client closed or reset its socket without waiting for the responses. */
  hasLeft: boolean
  /** The service ended the connection before the client did. */
  endedFirst: boolean
}

/**
 * Sends the items. Rejects if the service hangs. With `shutdown`, the client leaves its side of the
 * connection open until the service has ended.
 */
export async function play (
  address: string, items: Item[], stream: Stream, shutdown?: Promise<unknown>
): Promise<Observation> {
  const client = new StreamClient(address, items, stream.reader === 'slow')
  try {
    if (await once(client.socket, 'connect').then(() => true, () => false)) {
      if (stream.reader === 'late') client.socket.pause()
      for (const { bytes, pause } of segmentsOf(items, stream)) {
        client.write(bytes)
        await client.wait(pause)
      }
    }
    // Such a request would time out only after 30 s.
    const isSilent = client.begun > client.complete && items[client.complete]?.isUpgrade
    const leaves = stream.end === 'leave' || stream.end === 'reset' || isSilent === true
    const hasLeft = leaves && !client.hasEnded
    if (stream.end === 'stay' && !hasLeft) await client.wait('responses')
    const endedFirst = client.hasEnded
    if (hasLeft && stream.end === 'reset') client.socket.resetAndDestroy()
    if (!hasLeft) {
      // The service must end the connection after the last response, and during a shutdown.
      const waits = client.isOver || (shutdown !== undefined && stream.end === 'stay')
      if (!waits || stream.end === 'halfClose') client.socket.end()
      await client.until('the end of the connection', () => false)
      await shutdown
    }
    const { responses, complete, begun, inTurn, isMidway } = client
    return { responses, complete, begun, inTurn, isMidway, hasLeft, endedFirst }
  } finally {
    client.socket.destroy()
  }
}

class StreamClient {
  readonly socket: Socket
  readonly responses: Observation['responses'] = []
  hasEnded = false
  inTurn = 0
  readonly #items: Item[]
  /** The ends of the items in the text. */
  readonly #ends: number[] = []
  #sent = 0
  #incoming = new ResponseReader()
  #failure: unknown

  constructor (address: string, items: Item[], isSlow: boolean) {
    const { hostname, port } = new URL(address)
    this.#items = items
    for (const { text } of items) this.#ends.push((this.#ends.at(-1) ?? 0) + text.length)
    this.socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true, noDelay: true })
    this.socket.on('data', (chunk: Buffer) => {
      if (isSlow) {
        this.socket.pause()
        setTimeout(() => this.socket.resume(), 2)
      }
      this.#incoming.push(chunk)
      this.#takeResponses()
      this.socket.emit('changed')
    })
    // A reset also emits 'close'.
    this.socket.on('error', () => {})
    for (const event of ['end', 'close']) {
      this.socket.on(event, () => {
        this.hasEnded = true
        this.socket.emit('changed')
      })
    }
  }

  get complete (): number { return this.#ends.filter((end) => end <= this.#sent).length }
  get begun (): number { return [0, ...this.#ends.slice(0, -1)].filter((start) => start < this.#sent).length }
  get isMidway (): boolean { return this.#incoming.isMidway }
  /** Whether the last response has arrived. */
  get isOver (): boolean { return this.responses.at(-1)?.headers.connection === 'close' }

  write (text: string): void {
    const before = this.begun
    this.#sent += text.length
    const isInTurn = this.inTurn === before && this.responses.length === before
    if (isInTurn && this.begun > before && !this.isOver && !this.hasEnded) this.inTurn++
    this.socket.write(text, 'latin1')
  }

  async wait (pause: Pause): Promise<void> {
    if (pause === 'tick') await new Promise(setImmediate)
    else if (typeof pause === 'number') await delay(pause)
    else if (pause === 'responses') {
      // What arrives before a response gets none.
      await this.until('responses', () => this.isOver || this.responses.length >= this.complete)
    }
  }

  /** Waits until `isTrue` or the end of the connection. */
  async until (what: string, isTrue: () => boolean): Promise<void> {
    this.socket.resume()
    while (!this.hasEnded && !isTrue()) {
      const deadline = AbortSignal.timeout(patienceMs)
      await once(this.socket, 'changed', { signal: deadline }).catch(() => {})
      if (this.#failure !== undefined) throw this.#failure
      if (deadline.aborted) {
        const received = this.responses.map(({ status }) => status).join() + (this.isMidway ? '…' : '')
        throw new Error(`waited ${patienceMs} ms for ${what}, received ${received}`)
      }
    }
  }

  #takeResponses (): void {
    try {
      for (;;) {
        const index = this.responses.length
        const response = this.#incoming.take(this.#items[index]?.isHead === true)
        if (response === undefined) return
        // The parser of the service rejects a head before it knows the method. So the error has a body.
        if (this.#items[index]?.isHead && response.status === 400) this.#incoming = new ResponseReader()
        if (response.status !== 100) this.responses.push({ ...response, isEarly: index >= this.complete })
      }
    } catch (error) {
      this.#failure ??= error
    }
  }
}
