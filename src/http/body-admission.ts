// Reserves memory for large request bodies before they are read.
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { overloaded } from '../errors.ts'
import { inlineBytes, type MemoryBudget } from '../scheduling/memory-budget.ts'

/** Rejects a body that does not fit. Must be called on the root instance before any route is added. */
export function limitBodyMemory (app: FastifyInstance, budget: MemoryBudget): void {
  const limit = app.initialConfig.bodyLimit as number
  app.addHook('preParsing', (request, reply, _payload, done) => {
    const bytes = Math.min(sizeOf(request), limit)
    // Held until the response ends, since a batch holds the plant until then.
    const fits = bytes <= inlineBytes || budget.reserve(request.identity?.user ?? '', bytes, reply.raw)
    done(fits ? undefined : overloaded)
  })
}

/** In bytes, as far as the headers tell. */
function sizeOf ({ headers }: FastifyRequest): number {
  return headers['transfer-encoding'] === undefined ? Number(headers['content-length'] ?? 0) : Infinity
}
