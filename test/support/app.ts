import type { Test } from 'tap'
import { createTokens, type NewToken } from '../../src/access/tokens.ts'
import { buildApp } from '../../src/app.ts'
import { readConfig } from '../../src/config.ts'
import { openDatabase } from '../../src/database/database.ts'
import type { Domain } from '../../src/domains.ts'
import { createDatabase } from './database.ts'

/**
 * Builds the app as the command `serve` does. Creates a database unless `environment` has DATABASE_URL.
 * `register` replaces the routes of the domains. Clients send requests to `path`.
 */
export async function startApp (
  t: Test, environment: Record<string, string> = {}, register?: Domain['register'],
  path = '/plants'
) {
  const url = environment.DATABASE_URL ?? await createDatabase(t)
  const config = readConfig({ LOG_LEVEL: 'debug', ...environment, DATABASE_URL: url })
  const database = openDatabase({ url, statementTimeoutMs: config.STATEMENT_TIMEOUT })
  const lifecycle = { stopping: false }
  const log: string[] = []
  const logStream = { write: (line: string) => { log.push(line) } }
  const app = await buildApp({ config, database, lifecycle, logStream },
    register && [{ tables: [], register }])
  t.teardown(async () => {
    await app.close()
    await database.close()
  })
  const tokens = createTokens(database, config.MAX_QUEUED)
  return {
    app,
    url,
    database,
    /** Undefined without METRICS_PORT. */
    metricsUrl: log.map((line) => JSON.parse(line)).find(({ msg }) => msg === 'metrics')?.url as string,
    lifecycle,
    tokens,
    log,
    /** Polls /readyz until the status is `wanted`. On a busy machine a probe of the database may time out. */
    async untilReadiness (wanted: number) {
      while ((await app.inject('/readyz')).statusCode !== wanted);
    },
    listen: () => app.listen({ host: '127.0.0.1', port: 0 }),
    /** Creates a token for the user. Returns functions that send requests with the token. */
    async as (user: string, token: Partial<NewToken> = {}, url = path) {
      const authorization = `Bearer ${await tokens.create({ user, readOnly: false, ...token })}`
      return {
        authorization,
        /** Sends a string unchanged, and an object as JSON. */
        create (payload: object | string) {
          const headers = { authorization, 'content-type': 'application/json' }
          return app.inject({ method: 'POST', url, headers, payload })
        },
        list: (query = '') => app.inject({ url: `${url}${query}`, headers: { authorization } }),
        delete: (id: string | number | bigint) =>
          app.inject({ method: 'DELETE', url: `${url}/${id}`, headers: { authorization } })
      }
    }
  }
}
