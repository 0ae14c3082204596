// Sends a stream on a connection of its own, and reads the responses.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { ResponseReader, type RawResponse } from '../../../support/raw.ts'
import type { Pause, Segment, Stream } from './arbitrary.ts'
import { expectsContinue, isClosing, type Observation } from './judge.ts'
import { parseRequests } from './parse.ts'

/** The service must respond within this time, also on a busy machine. */
const patienceMs = Number(process.env.PATIENCE ?? 10_000)

/**
 * Sends the segments. Rejects if the service hangs. With `shutdown`, the client leaves its side of the connection
 * open until the service has ended.
 */
export async function play (
  address: string, segments: Segment[], { reader, end, endPause }: Stream, shutdown?: Promise<unknown>
): Promise<Observation> {
  const client = new StreamClient(address, reader === 'slow')
  const { socket } = client
  await using _ = { [Symbol.asyncDispose]: async () => { socket.destroy() } }
  let [hasLeft, isCutByConnect] = [false, false]
  if (await once(socket, 'connect').then(() => true, () => false)) {
    if (reader === 'late') socket.pause()
    for (const { bytes, pause } of segments) {
      client.write(bytes)
      isCutByConnect ||= client.interruptsByConnect()
      await client.wait(pause)
    }
    await client.wait(endPause)
  }
  let endedFirst = client.hasEnded
  if (end === 'leave' || end === 'reset') {
    hasLeft = !endedFirst
    if (end === 'leave') socket.destroy()
    else socket.resetAndDestroy()
  } else {
    if (end === 'halfClose') socket.end()
    else {
      await client.wait('responses')
      endedFirst = client.hasEnded
      // After the last response, the service must end the connection.
      if (shutdown === undefined && !client.isOver()) socket.end()
    }
    await client.untilEnd()
    await shutdown
    socket.destroy()
  }
  if (!socket.closed) await once(socket, 'close')
  const { sent, responses, isMidway } = client
  return {
    sent, responses, isMidway, hasLeft, endedFirst, isCutByConnect, inShutdown: shutdown !== undefined
  }
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
    return last !== undefined && isClosing(last)
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
    const deadline = AbortSignal.timeout(patienceMs)
    while (!this.hasEnded && !isTrue()) {
      await once(this.socket, 'changed', { signal: deadline }).catch(() => {})
      if (this.#failure !== undefined) throw this.#failure
      if (deadline.aborted) {
        const statuses = this.responses.map(({ status }) => status).join()
        throw new Error(`waited ${patienceMs} ms for ${what}, received ${statuses}${this.isMidway ? '…' : ''}`)
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
    if (finals < requests.length + Number(tail.kind === 'malformed')) return false
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
        // An error of Node's parser has a body, because Node does not tell the method of a malformed request.
        if (isHead && isClosing(response)) this.#incoming = new ResponseReader()
      }
    } catch (error) {
      this.#failure ??= error
    }
  }
}
