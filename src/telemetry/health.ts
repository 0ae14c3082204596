// Whether the process lives, and whether it can serve.
import { setTimeout as delay } from 'node:timers/promises'
import type { FastifyPluginAsyncTypebox } from '@fastify/type-provider-typebox'
import { Type } from '@sinclair/typebox'
import type { Database } from '../database/database.ts'
import { ApiError, errors, ErrorSchema } from '../errors.ts'

/** What the process is up to; what concerns its end is set once and for all by whoever ends it. */
export interface Lifecycle { starting?: boolean, stopping: boolean, forceCloseAt?: number }

const StatusSchema = Type.Object({ status: Type.Literal('ok') })

// Probes commonly wait for a second.
const probeTimeoutMs = 800

export const unreadyReasons = ['starting', 'stopping', 'database'] as const

/** Why the service can't serve, undefined when it can. */
export type Readiness = () => Promise<{ name: (typeof unreadyReasons)[number], error: ApiError } | undefined>

/** Asks the database once for all who ask meanwhile: nobody needs a token to ask. */
export function createReadiness (database: Database, lifecycle: Lifecycle): Readiness {
  let probing: Promise<unknown> | undefined
  const unavailable = (cause: unknown) => new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
  return async () => {
    if (lifecycle.stopping) return { name: 'stopping', error: new ApiError(errors.STOPPING) }
    // The tables of the version before would satisfy the probe while this one's migrations run.
    if (lifecycle.starting) return { name: 'starting', error: unavailable('not migrated yet') }
    try {
      probing ??= within(probeTimeoutMs, database.probe()).finally(() => { probing = undefined })
      await probing
    } catch (cause) {
      return { name: 'database', error: unavailable(cause) }
    }
  }
}

/** Of the routes below. */
export const probePaths = ['/livez', '/readyz']

type HealthRoutes = FastifyPluginAsyncTypebox<{ readiness: Readiness }>

/** For probes, and open to all: /livez as long as the process answers, /readyz while it can serve. */
export const healthRoutes: HealthRoutes = async (app, { readiness }) => {
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
    const reason = await readiness()
    if (reason?.name === 'database' && isReady) app.log.warn({ err: reason.error.cause }, 'not ready')
    if (reason === undefined && !isReady) app.log.info('ready again')
    isReady = reason?.name !== 'database'
    if (reason !== undefined) throw reason.error
    return { status: 'ok' as const }
  })
}

function within<Result> (ms: number, work: Promise<Result>): Promise<Result> {
  const tooLate = delay(ms, undefined, { ref: false }).then(() => {
    throw new Error(`no answer within ${ms} ms`)
  })
  return Promise.race([work, tooLate])
}
