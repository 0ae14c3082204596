import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import type { Database } from '../database/database.ts'
import { ApiError, errors, ErrorSchema } from '../errors.ts'

/** What the process is up to; `stopping` is set once and for all by whoever ends it. */
export interface Lifecycle { starting?: boolean, stopping: boolean }

const StatusSchema = Type.Object({ status: Type.Literal('ok') })

// Probes commonly wait for a second.
const probeTimeoutMs = 800

export const healthRoutes: FastifyPluginAsyncTypebox<{ database: Database, lifecycle: Lifecycle }> = async (app, { database, lifecycle }) => {
  app.get('/livez', {
    schema: { response: { 200: StatusSchema, '4xx': ErrorSchema } }
  }, async function live () {
    return { status: 'ok' as const }
  })

  let isReady = true
  let probing: Promise<unknown> | undefined
  app.get('/readyz', {
    // Probed every second or so: what is logged is a change.
    logLevel: 'silent',
    schema: { response: { 200: StatusSchema, '4xx': ErrorSchema, '5xx': ErrorSchema } }
  }, async function ready () {
    if (lifecycle.stopping) throw new ApiError(errors.STOPPING)
    // The tables of the version before would satisfy the probe while this one's migrations run.
    if (lifecycle.starting) throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause: 'not migrated yet' })
    try {
      // One for all who ask meanwhile: nobody needs a token to ask.
      probing ??= within(probeTimeoutMs, database.probe()).finally(() => { probing = undefined })
      await probing
    } catch (cause) {
      if (isReady) app.log.warn({ err: cause }, 'not ready')
      isReady = false
      throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
    }
    if (!isReady) app.log.info('ready again')
    isReady = true
    return { status: 'ok' as const }
  })
}

function within<Result> (ms: number, work: Promise<Result>): Promise<Result> {
  const tooLate = delay(ms, undefined, { ref: false }).then(() => {
    throw new Error(`no answer within ${ms} ms`)
  })
  return Promise.race([work, tooLate])
}
