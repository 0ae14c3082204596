// Serves the liveness and readiness probes, /livez and /readyz.
import { setImmediate, setTimeout as delay } from 'node:timers/promises'
import type { FastifyPluginAsync } from 'fastify'
import { ApiError, errors } from '../errors.ts'
import type { Lifecycle } from '../http/wire/server.ts'

// Shorter than one second, the usual timeout of clients that probe /readyz.
const probeTimeoutMs = 800

export const unreadyReasons = ['starting', 'stopping', 'database'] as const

/** Resolves to undefined if the service is ready, and otherwise to the reason why not. */
export type Readiness = () => Promise<{ name: (typeof unreadyReasons)[number], error: ApiError } | undefined>

/** Concurrent calls share a call of `probe`. Otherwise requests to /readyz could overload the database. */
export function createReadiness (probe: () => Promise<void>, lifecycle: Lifecycle): Readiness {
  let probing: Promise<unknown> | undefined
  const expire = async () => {
    await delay(probeTimeoutMs, undefined, { ref: false })
    // Read the response first if the response arrived while the event loop was blocked.
    await setImmediate()
    throw new Error(`no response within ${probeTimeoutMs} ms`)
  }

  return async () => {
    if (lifecycle.stopping) return { name: 'stopping', error: new ApiError(errors.STOPPING) }
    // Do not probe yet. Before the migration ends, the old tables could make the probe succeed.
    if (lifecycle.starting) return { name: 'starting', error: new ApiError(errors.DATABASE_UNAVAILABLE) }
    try {
      probing ??= Promise.race([probe(), expire()]).finally(() => { probing = undefined })
      await probing
    } catch (error) {
      // The log needs the error of the database, which has a code.
      const { cause = error } = error as Error
      return { name: 'database', error: new ApiError(errors.DATABASE_UNAVAILABLE, { cause }) }
    }
  }
}

export const probePaths = ['/livez', '/readyz']

/** Neither route needs a token. /livez always succeeds. /readyz succeeds while the service is ready. */
export const healthRoutes: FastifyPluginAsync<{ readiness: Readiness }> = async (app, { readiness }) => {
  app.get('/livez', async () => ({ status: 'ok' }))

  let isReady = true
  // Requests to /readyz come every second, so do not log each. The handler logs changes of readiness.
  app.get('/readyz', { logLevel: 'silent' }, async () => {
    const reason = await readiness()
    if (reason?.name === 'database' && isReady) app.log.warn({ err: reason.error.cause }, 'not ready')
    if (reason === undefined && !isReady) app.log.info('ready again')
    isReady = reason?.name !== 'database'
    if (reason !== undefined) throw reason.error
    return { status: 'ok' }
  })
}
