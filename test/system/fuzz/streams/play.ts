// Sends a stream on a connection of its own, and reads the responses.
import { once } from 'node:events'
import { connect } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { takeResponse, type RawResponse } from '../../../support/raw.ts'
import type { Pause, Segment, Stream } from './arbitrary.ts'
import { expectsContinue, type Observation } from './judge.ts'
import { parseRequests } from './parse.ts'

/** The service must respond within this time, also on a busy machine. */
const patienceMs = 10_000

/**
 * Without `shutdown`, the service is expected to end the connection only after a response with Connection: close.
 * With `shutdown`, the client keeps its side open until the service has ended. Rejects if the service hangs.
 */
export async function play (
  address: string, segments: Segment[], { reader, end, endPause }: Stream, shutdown?: Promise<unknown>
): Promise<Observation> {
  const { hostname, port } = new URL(address)
  const socket = connect({ host: hostname, port: Number(port), allowHalfOpen: true, noDelay: true })
  const responses: RawResponse[] = []
  let [sent, rest] = [Buffer.alloc(0), '']
  let [hasEnded, hasLeft, endedFirst, isCutByConnect] = [false, false, false, false]
  const changed = () => { socket.emit('changed') }
  socket.on('data', (chunk: Buffer) => {
    rest += chunk.toString('latin1')
    if (reader === 'slow') {
      socket.pause()
      setTimeout(() => socket.resume(), 2)
    }
    changed()
  })
  // A reset also emits 'close'.
  socket.on('error', () => {})
  for (const event of ['end', 'close']) {
    socket.on(event, () => {
      hasEnded = true
      changed()
    })
  }

  /** Moves complete responses from `rest` to `responses`. */
  function takeResponses (): void {
    const { requests, tail } = parseRequests(sent)
    const methods = [...requests, ...tail.head ? [tail.head] : []].map(({ method }) => method)
    for (;;) {
      const finals = responses.filter(({ status }) => status !== 100).length
      const taken = rest === '' ? undefined : takeResponse(rest, methods[finals] === 'HEAD')
      if (taken === undefined) return
      responses.push(taken.response)
      rest = taken.rest
    }
  }

  /** Returns whether all expected responses have arrived. */
  function hasResponses (): boolean {
    takeResponses()
    const { requests, tail } = parseRequests(sent)
    const finals = responses.filter(({ status }) => status !== 100).length
    if (finals < requests.length + Number(tail.kind === 'malformed')) return false
    return tail.kind !== 'incomplete' || tail.head === undefined || !expectsContinue(tail.head) ||
      finals > requests.length || responses.at(-1)?.status === 100
  }

  /** Waits until `isTrue` or the end of the connection. */
  async function until (what: string, isTrue: () => boolean): Promise<void> {
    socket.resume()
    const deadline = AbortSignal.timeout(patienceMs)
    while (!hasEnded && !isTrue()) {
      await once(socket, 'changed', { signal: deadline }).catch(() => {})
      if (deadline.aborted) throw new Error(`waited ${patienceMs} ms for ${what}`)
    }
  }

  async function sendSegments (): Promise<void> {
    for (const { bytes, pause } of segments) {
      sent = Buffer.concat([sent, bytes])
      takeResponses()
      isCutByConnect ||= hasUnexpectedConnect()
      socket.write(bytes)
      await wait(pause)
    }
  }

  /** Returns whether the bytes so far end with CONNECT, while responses to earlier requests are missing. */
  function hasUnexpectedConnect (): boolean {
    const { requests } = parseRequests(sent)
    const finals = responses.filter(({ status }) => status !== 100).length
    return requests.at(-1)?.method === 'CONNECT' && finals < requests.length - 1
  }

  async function wait (pause: Pause): Promise<void> {
    if (pause === 'turn') await new Promise(setImmediate)
    else if (pause === 'responses') await until('responses', hasResponses)
    else if (pause !== 'none') await delay(pause)
  }

  const isConnected = await once(socket, 'connect').then(() => true, () => false)
  if (reader === 'late') socket.pause()
  if (isConnected) {
    await sendSegments()
    await wait(endPause)
  }
  if (end === 'leave' || end === 'reset') {
    hasLeft = !hasEnded
    endedFirst = hasEnded
    if (end === 'leave') socket.destroy()
    else socket.resetAndDestroy()
  } else {
    if (end === 'halfClose') socket.end()
    else await until('responses', hasResponses)
    endedFirst = hasEnded && end === 'stay'
    const isLast = responses.at(-1)?.headers.connection?.toLowerCase() === 'close'
    if (shutdown === undefined && !isLast) socket.end()
    await until('the end of the connection', () => false)
    await shutdown
    socket.destroy()
  }
  if (!socket.closed) await once(socket, 'close')
  takeResponses()
  return { sent, responses, rest, hasLeft, endedFirst, isCutByConnect, inShutdown: shutdown !== undefined }
}
