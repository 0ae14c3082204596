import type { Test } from 'tap'
import { createTokens, type NewToken } from '../../src/access/tokens.ts'
import { buildApp } from '../../src/app.ts'
import { readConfig } from '../../src/config.ts'
import { openDatabase } from '../../src/database/database.ts'
import { openTelemetry } from '../../src/telemetry/telemetry.ts'
import { createDatabase } from './database.ts'

export type TestApp = Awaited<ReturnType<typeof startApp>>

/** The app that `serve` builds, on a fresh database unless the environment names one; with other domains when told. */
export async function startApp (t: Test, environment: Record<string, string> = {}, domains?: Parameters<typeof buildApp>[1]) {
  const url = environment.DATABASE_URL ?? await createDatabase(t)
  const config = readConfig({ LOG_LEVEL: 'debug', ...environment, DATABASE_URL: url })
  const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT, maxQueued: config.MAX_QUEUED })
  const lifecycle = { stopping: false }
  const log: string[] = []
  const observers = await openTelemetry(config)
  const logStream = { write: (line: string) => { log.push(line) } }
  const app = await buildApp({ config, database, lifecycle, observers, logStream }, domains)
  t.teardown(async () => {
    await app.close()
    await database.close()
    for (const observer of observers) await observer.close()
  })
  const tokens = createTokens(database)

  return {
    app,
    url,
    database,
    observers,
    lifecycle,
    tokens,
    /** The lines logged so far. */
    log,

    /** The address of a real socket, for what `inject` can't show. */
    listen: () => app.listen({ host: '127.0.0.1', port: 0 }),

    /** A user's way to call the app: a token of theirs in every request. */
    async as (user: string, token: Partial<NewToken> = {}) {
      const authorization = `Bearer ${await tokens.create({ user, readOnly: false, ...token })}`
      return {
        authorization,
        /** The payload goes out as it is when it is text. */
        create: (plant: object | string) => app.inject({
          method: 'POST',
          url: '/plants',
          headers: { authorization, 'content-type': 'application/json' },
          payload: plant
        }),
        list: (query = '') => app.inject({ url: `/plants${query}`, headers: { authorization } }),
        delete: (id: string | number | bigint) => app.inject({ method: 'DELETE', url: `/plants/${id}`, headers: { authorization } })
      }
    }
  }
}
