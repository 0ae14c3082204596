// How much memory and time large bodies may take together, fair among those who send them.
import { setImmediate as nextTurn } from 'node:timers/promises'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { clientClosedRequest, overloaded } from '../errors.ts'
import { FairQueue } from '../scheduling/fair-queue.ts'
import { createMemoryBudget } from '../scheduling/memory-budget.ts'
import { Schedule } from '../scheduling/drain-scheduler.ts'
import { maxQueuedBodies, bodyBudgetBytes, inlineBodyBytes } from './limits.ts'

type Begin = (error?: Error) => void

/**
 * A large body is read when it is its turn: one begins in a turn of the event loop, an owner after the
 * other, as far as there is room beside those whose requests are not answered yet. Until then Node holds
 * a piece of it, and the rest waits with its sender. Refused is who waits too long, and past
 * `mostBodiesWaiting` one of who has most waiting. Small ones are bounded by the number of connections.
 */
export function limitBodyMemory (app: FastifyInstance): void {
  const limit = app.initialConfig.bodyLimit as number
  const room = createMemoryBudget(bodyBudgetBytes)
  const waiting = new FairQueue<Begin>(room.hasCapacity)
  const schedule = new Schedule(() => {
    for (const begin of waiting.takeExpired()) begin(overloaded)
    waiting.takeNext()?.()
    if (!waiting.isIdle()) schedule.soon()
    else if (waiting.weight > 0) schedule.later()
  })

  app.addHook('preParsing', (request, { raw: answer }, _payload, done) => {
    const bytes = Math.min(sizeOf(request), limit)
    if (bytes <= inlineBodyBytes) return done()
    const owner = request.identity?.user ?? ''
    const begin = (error?: Error) => {
      if (error !== undefined || answer.destroyed) return done(error ?? clientClosedRequest)
      // All of it, and until it is answered: who sends slowly takes the room of others of the same owner.
      room.open(owner, answer)(bytes)
      done()
    }
    if (waiting.weight === maxQueuedBodies) {
      const other = waiting.evictFromLargest(owner, 1)
      if (other === undefined) return begin(overloaded)
      other(overloaded)
    }
    waiting.add(owner, begin, 1)
    schedule.soon()
  })
}

/** In bytes, as far as it is known before all of it is there. */
function sizeOf ({ headers }: FastifyRequest): number {
  return headers['transfer-encoding'] === undefined ? Number(headers['content-length'] ?? 0) : Infinity
}

/**
 * Large bodies are parsed one in a turn of the event loop, and nothing of them for as long as the last one
 * took: a hundred that arrive together would keep all others waiting for a second.
 */
export function takeTurnsToParse () {
  let last: Promise<unknown> = Promise.resolve()

  return async function inTurn<Value> (parse: () => Value): Promise<Value> {
    const before = last
    const pause = Promise.withResolvers<void>()
    last = pause.promise
    await before
    await nextTurn()
    const begunAt = performance.now()
    try {
      return parse()
    } finally {
      setTimeout(pause.resolve, performance.now() - begunAt)
    }
  }
}
