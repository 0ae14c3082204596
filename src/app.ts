// Builds the Fastify app. commands/serve.ts opens the database, listens, and handles signals.
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
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
import { createRequestLog, fieldsOf, newRequestId } from './http/request-log.ts'
import { handleError, setStandardHeaders } from './http/responses.ts'
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
  /** Receives the log lines. Standard output by default. */
  logStream?: { write (line: string): void }
}

/** Registers the routes of each domain. All these routes require a bearer token. Add new domains here. */
async function registerDomains (
  guarded: FastifyInstance, { config, database }: AppOptions, budget: MemoryBudget
): Promise<void> {
  const { WRITE_BATCH: writeBatch, MAX_QUEUED: maxQueued, BODY_LIMIT: bodyLimit } = config
  const plants = createPlants(database, { writeBatch, maxQueued, bodyLimit, budget })
  await guarded.register(plantsRoutes, { plants })
}

/** Fastify runs hooks in the order of their registration, so the order of the calls below matters. */
export async function buildApp (options: AppOptions, register = registerDomains) {
  const { config, database, lifecycle, observers = [], logStream } = options
  const app = Fastify({
    ...serverLimits,
    // Serve requests even during a shutdown. By default, Fastify would reject them.
    return503OnClosing: false,
    clientErrorHandler: handleClientError,
    frameworkErrors: handleError,
    logger: {
      level: config.LOG_LEVEL,
      stream: logStream,
      // Write level names and ISO times instead of pino's numbers, which log systems do not understand.
      formatters: { level: (level) => ({ level }) },
      timestamp: () => `,"time":"${new Date().toISOString()}"`,
      mixin: fieldsOf
    },
    genReqId: newRequestId,
    trustProxy: config.TRUSTED_PROXIES ?? false,
    logController: new DebugRequestLog(),
    childLoggerFactory: createRequestLog,
    bodyLimit: config.BODY_LIMIT,
    // Do not use setValidatorCompiler: Fastify ignores it in plugins that call addSchema, and uses Ajv there.
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

/** Logs one debug line per request. Fastify's default of two info lines would double the time per request. */
class DebugRequestLog extends LogController {
  override incomingRequest (): void {}
  override requestCompleted (_error: unknown, request: FastifyRequest, reply: FastifyReply): void {
    if (!debugLevels.has(request.server.log.level)) return
    // Log the route's pattern, because the URL may contain a token.
    const { method, routeOptions: { url: route } } = request
    request.log.debug({ method, route, status: reply.statusCode, ms: reply.elapsedTime }, 'request completed')
  }
}
