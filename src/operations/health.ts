import { setTimeout } from 'node:timers/promises'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import type { Database } from '../database/database.ts'
import { ApiError, ErrorSchema } from '../errors.ts'

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
  app.get('/readyz', {
    // Probed every second or so: what is logged is a change.
    logLevel: 'silent',
    schema: { response: { 200: StatusSchema, '4xx': ErrorSchema, '5xx': ErrorSchema } }
  }, async function ready () {
    if (lifecycle.stopping) throw new ApiError('STOPPING')
    // The tables of the version before would satisfy the probe while this one's migrations run.
    if (lifecycle.starting) throw new ApiError('DATABASE_UNAVAILABLE', { cause: 'not migrated yet' })
    try {
      await within(probeTimeoutMs, database.probe())
    } catch (cause) {
      if (isReady) app.log.warn({ err: cause }, 'not ready')
      isReady = false
      throw new ApiError('DATABASE_UNAVAILABLE', { cause })
    }
    if (!isReady) app.log.info('ready again')
    isReady = true
    return { status: 'ok' as const }
  })
}

function within<Result> (ms: number, work: Promise<Result>): Promise<Result> {
  const timer = new AbortController()
  const tooLate = setTimeout(ms, undefined, { signal: timer.signal }).then(() => {
    throw new Error(`no answer within ${ms} ms`)
  })
  return Promise.race([work, tooLate]).finally(() => timer.abort())
}
