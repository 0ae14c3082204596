// How much memory and time large bodies may take, those that arrive and those that wait to be parsed.
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyInstance, RequestPayload } from 'fastify'
import { ApiError, errors } from '../errors.ts'
import { mostHeldBytes, mostUnparsedBytes, smallBody } from './limits.ts'

interface Body { payload: RequestPayload, bytes: number, count: (chunk: Buffer) => void }

/**
 * Bounds the bytes of all bodies that are arriving. Past it the body that has
 * been arriving for longest is refused: a caller who sends its own in one go
 * has it whole long before. Small ones are bounded by the number of connections.
 */
export function boundBodies (app: FastifyInstance): void {
  const arriving = new Set<Body>()
  let held = 0

  const forget = (body: Body) => {
    if (arriving.delete(body)) held -= body.bytes
    body.payload.off('data', body.count)
  }

  app.addHook('preParsing', (request, _reply, payload, done) => {
    const { 'content-length': length, 'transfer-encoding': coding } = request.headers
    if (coding === undefined && Number(length ?? 0) <= smallBody) return done()
    const body = { payload, bytes: 0, count }
    arriving.add(body)
    payload.on('data', count)
    for (const event of ['end', 'close']) payload.once(event, () => forget(body))
    done()

    function count (chunk: Buffer): void {
      body.bytes += chunk.length
      held += chunk.length
      for (const oldest of arriving) {
        if (held <= mostHeldBytes) break
        forget(oldest)
        // To Fastify, which waits for its end, as if it had failed: what still comes of it is dropped.
        const error = new ApiError(errors.OVERLOADED, { cause: 'too many bytes of unfinished bodies' })
        oldest.payload.emit('error', error)
      }
    }
  })
}

/**
 * Large bodies are parsed one in a turn of the event loop: a hundred that arrive together would keep all
 * others waiting for a second. Rejects with OVERLOADED past `mostUnparsedBytes`.
 */
export function takeTurnsToParse () {
  let held = 0
  let last: Promise<unknown> = Promise.resolve()

  return async function inTurn<Value> (body: Buffer, parse: () => Value): Promise<Value> {
    if (held > mostUnparsedBytes) {
      throw new ApiError(errors.OVERLOADED, { cause: 'too many bytes of bodies to be parsed' })
    }
    held += body.length
    try {
      last = last.then(() => nextTurn())
      await last
      return parse()
    } finally {
      held -= body.length
    }
  }
}
