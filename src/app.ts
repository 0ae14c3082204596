// Builds the service without its socket, signals and database.
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import { randomUUID } from 'node:crypto'
import Fastify, { LogController, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import { requireBearer, requireScope } from './access/bearer.ts'
import { createAuthenticate } from './access/token-cache.ts'
import { createTokens } from './access/tokens.ts'
import { registerApiDocs } from './api-docs/api-docs.ts'
import type { Config } from './config.ts'
import type { Database } from './database/database.ts'
import { registerErrorLog } from './http/error-log.ts'
import { readJsonBodies } from './http/json.ts'
import { serverLimits } from './http/limits.ts'
import { rejectMalformedQuery, rejectMalformedRequests } from './http/request-checks.ts'
import { handleError, setStandardHeaders } from './http/responses.ts'
import { readTraceparent } from './http/trace-context.ts'
import { compileValidator } from './http/validation.ts'
import { handleClientError, manageConnections } from './http/wire/connections.ts'
import type { Lifecycle } from './http/wire/shutdown.ts'
import { throttleUnauthenticated } from './http/wire/unauthenticated-throttle.ts'
import { createPlants } from './plants/repository.ts'
import { plantsRoutes } from './plants/routes.ts'
import { MemoryBudget } from './scheduling/memory-budget.ts'
import { createReadiness, healthRoutes, probePaths } from './telemetry/health.ts'
import type { Telemetry } from './telemetry/telemetry.ts'

export interface AppOptions {
  config: Config
  database: Database
  lifecycle: Lifecycle
  observers?: Telemetry[]
  /** Standard output by default. */
  logStream?: { write (line: string): void }
}

/** Registers each domain behind the bearer token. A new domain is a line here. */
async function registerDomains (
  guarded: FastifyInstance, { config, database }: AppOptions, budget: MemoryBudget
): Promise<void> {
  const { WRITE_BATCH: writeBatch, MAX_QUEUED: maxQueued, BODY_LIMIT: bodyLimit } = config
  const plants = createPlants(database, { writeBatch, maxQueued, bodyLimit, budget })
  await guarded.register(plantsRoutes, { plants })
}

/** The order of registration is the order in which the parts see a request. */
export async function buildApp (options: AppOptions, register = registerDomains) {
  const { config, database, lifecycle, observers = [], logStream } = options
  const app = Fastify({
    ...serverLimits,
    // `Connection: close` announces a shutdown. Fastify would also send a 503 with a body of its own.
    return503OnClosing: false,
    clientErrorHandler: handleClientError,
    frameworkErrors: handleError,
    logger: {
      level: config.LOG_LEVEL,
      stream: logStream,
      // Names of levels and ISO times, because log systems do not know pino's numbers.
      formatters: { level: (level) => ({ level }) },
      timestamp: () => `,"time":"${new Date().toISOString()}"`
    },
    genReqId: () => randomUUID(),
    trustProxy: config.TRUSTED_PROXIES ?? false,
    logController: new DebugRequestLog(),
    childLoggerFactory: (log, bindings, options, { headers }) => {
      const trace = readTraceparent(headers.traceparent)
      const ids = trace && { trace_id: trace.traceId, span_id: trace.parentId }
      return log.child({ ...bindings, ...ids }, options)
    },
    bodyLimit: config.BODY_LIMIT,
    // With setValidatorCompiler a plugin that calls addSchema would get Fastify's default, Ajv.
    schemaController: { compilersFactory: { buildValidator: () => compileValidator as never } }
  }).withTypeProvider<TypeBoxTypeProvider>()

  const readiness = createReadiness(database, lifecycle)
  for (const observer of observers) observer.instrument(app, database, readiness)
  database.onWarning((what, details) => app.log.warn(details, what))
  registerErrorLog(app)
  app.setErrorHandler(handleError)
  setStandardHeaders(app)
  throttleUnauthenticated(app, probePaths)
  const cors = config.CORS_ORIGIN === undefined ? undefined : await import('./http/cors.ts')
  rejectMalformedRequests(app, cors?.allowOrigins(app, config.CORS_ORIGIN as string))
  const budget = new MemoryBudget(config.MEMORY_BUDGET)
  readJsonBodies(app, budget)
  manageConnections(app, lifecycle, config.MAX_CONNECTIONS)

  await app.register(healthRoutes, { readiness })
  await registerApiDocs(app, { docs: config.DOCS === 'on', issuer: config.JWT_ISSUER })
  await app.register(async (guarded) => {
    const tokens = createTokens(database, config.MAX_QUEUED)
    const own = createAuthenticate(tokens, config.TOKEN_CACHE_TTL)
    const authenticate = config.JWT_ISSUER === undefined
      ? own
      : (await import('./access/jwt.ts')).acceptJwts(app, guarded, config, own)
    const { USER_RATE: userRate, USER_BURST: burst, FAILED_AUTH_RATE: failedAuthRate } = config
    const limits = userRate || failedAuthRate ? await import('./access/rate-limits.ts') : undefined
    const admit = failedAuthRate && limits?.limitFailedAuth(guarded, failedAuthRate)
    await requireBearer(guarded, authenticate, admit)
    if (userRate) limits?.limitUsers(guarded, userRate, burst)
    guarded.addHook('onRequest', rejectMalformedQuery)
    guarded.addHook('onRequest', requireScope)
    await register(guarded, options, budget)
  })
  return app
}

const debugLevels = new Set(['debug', 'trace'])

/** Logs one line at debug for each request. Fastify's own two lines at info cost as much as the request. */
class DebugRequestLog extends LogController {
  override incomingRequest (): void {}
  override requestCompleted (_error: unknown, request: FastifyRequest, reply: FastifyReply): void {
    // Collecting the fields costs more than everything else that the log does for a successful request.
    if (!debugLevels.has(request.server.log.level)) return
    // The route's pattern, because the URL may hold a token.
    const { method, routeOptions: { url: route } } = request
    request.log.debug({ method, route, status: reply.statusCode, ms: reply.elapsedTime }, 'request completed')
  }
}
