// Sends a stream on a connection of its own, and reads the responses.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { ResponseReader, type RawResponse } from '../../../support/raw.ts'
import { closes, expectsContinue, mustReportError, type Observation } from './judge.ts'
import { parseRequests } from './parse.ts'
import type { Segment } from './render.ts'
import type { Pause, Stream } from './stream.ts'

/** Some part of a response must arrive within this time, also on a busy machine. */
const patienceMs = 10_000
/** On a busy machine, a stream takes longer. Then timeouts of the service may end the connection. */
const lateMs = 2000

/**
 * Sends the segments. Rejects if the service hangs. With `shutdown`, the client leaves its side of the
 * connection open until the service has ended.
 */
export async function play (
  address: string, segments: Segment[], stream: Stream, shutdown?: Promise<unknown>
): Promise<Observation> {
  const start = performance.now()
  const client = new StreamClient(address, stream.reader === 'slow')
  try {
    let [hasLeft, isCutByConnect] = [false, false]
    if (await once(client.socket, 'connect').then(() => true, () => false)) {
      if (stream.reader === 'late') client.socket.pause()
      for (const { bytes, pause } of segments) {
        client.write(bytes)
        isCutByConnect ||= client.interruptsByConnect()
        await client.wait(pause)
      }
      await client.wait(stream.endPause)
    }
    let endedFirst = client.hasEnded
    if (stream.end === 'leave' || stream.end === 'reset') hasLeft = !endedFirst
    else endedFirst = await end(client, stream.end, shutdown)
    if (stream.end === 'reset') client.socket.resetAndDestroy()
    const { sent, responses, isMidway } = client
    return {
      sent,
      responses,
      isMidway,
      hasLeft,
      endedFirst,
      isCutByConnect,
      isLate: performance.now() - start > lateMs,
      inShutdown: shutdown !== undefined
    }
  } finally {
    client.socket.destroy()
  }
}

/** Reads to the end of the connection. Returns whether the service ended it before the client did. */
async function end (
  client: StreamClient, how: 'stay' | 'halfClose', shutdown: Promise<unknown> | undefined
): Promise<boolean> {
  if (how === 'stay') await client.wait('responses')
  const endedFirst = client.hasEnded
  // The service must end the connection after the last response, and during a shutdown.
  if (how === 'halfClose' || (shutdown === undefined && !client.isOver())) client.socket.end()
  await client.untilEnd()
  await shutdown
  return endedFirst
}

class StreamClient {
  readonly socket: Socket
  readonly responses: RawResponse[] = []
  sent = Buffer.alloc(0)
  hasEnded = false
  #parsed = parseRequests(this.sent)
  #incoming = new ResponseReader()
  #failure: unknown

  constructor (address: string, isSlow: boolean) {
    const { hostname, port } = new URL(address)
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

  get isMidway (): boolean {
    return this.#incoming.isMidway
  }

  write (bytes: Buffer): void {
    this.sent = Buffer.concat([this.sent, bytes])
    this.#parsed = parseRequests(this.sent)
    this.socket.write(bytes)
  }

  /** Returns whether CONNECT may have arrived while responses to earlier requests are missing. */
  interruptsByConnect (): boolean {
    const { requests } = this.#parsed
    const earlier = requests.at(-1)?.method === 'CONNECT' ? requests.length - 1 : requests.length
    return this.sent.includes('CONNECT ') && this.#finals() < earlier
  }

  /** Returns whether the last response has arrived. */
  isOver (): boolean {
    const last = this.responses.at(-1)
    return last !== undefined && closes(last)
  }

  async wait (pause: Pause): Promise<void> {
    if (pause === 'turn') await new Promise(setImmediate)
    else if (pause === 'responses') await this.#until('responses', () => this.#hasResponses())
    else if (pause !== 'none') await delay(pause)
  }

  untilEnd () {
    return this.#until('the end of the connection', () => false)
  }

  /** Waits until `isTrue` or the end of the connection. */
  async #until (what: string, isTrue: () => boolean): Promise<void> {
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

  #finals () {
    return this.responses.filter(({ status }) => status !== 100).length
  }

  /** Returns whether all responses to the bytes so far have arrived. */
  #hasResponses (): boolean {
    const { requests, tail } = this.#parsed
    const finals = this.#finals()
    if (finals < requests.length + Number(mustReportError(tail))) return false
    return tail.kind !== 'incomplete' || tail.head === undefined || !expectsContinue(tail.head) ||
      finals > requests.length || this.responses.at(-1)?.status === 100
  }

  #takeResponses (): void {
    const { requests, tail } = this.#parsed
    const heads = [...requests, ...tail.head ? [tail.head] : []]
    try {
      for (;;) {
        const isHead = heads[this.#finals()]?.method === 'HEAD'
        const response = this.#incoming.take(isHead)
        if (response === undefined) return
        this.responses.push(response)
        // Node does not tell the method of a malformed request, so the error has a body.
        if (isHead && closes(response)) this.#incoming = new ResponseReader()
      }
    } catch (error) {
      this.#failure ??= error
    }
  }
}
