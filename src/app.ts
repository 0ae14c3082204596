// The whole service, put together.
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import Fastify, { LogController, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify'
import { requireBearer } from './access/bearer.ts'
import { createAuthenticate } from './access/token-cache.ts'
import { createTokens } from './access/tokens.ts'
import type { Config } from './config.ts'
import type { Database } from './database/database.ts'
import { handleError, setStandardHeaders, newRequestId } from './http/responses.ts'
import { limitBodyMemory } from './http/body-admission.ts'
import { handleClientError, limitConnections, manageConnections } from './http/wire/connections.ts'
import { readJsonBodies } from './http/json.ts'
import { serverLimits } from './http/limits.ts'
import { registerErrorLog } from './http/error-log.ts'
import { createRequestLog } from './http/request-log.ts'
import { rejectMalformedQuery, rejectMalformedRequests } from './http/request-checks.ts'
import { throttleUnauthenticated } from './http/wire/unauthenticated-throttle.ts'
import { compileValidator } from './http/validation.ts'
import { createReadiness, healthRoutes, probePaths, type Lifecycle } from './telemetry/health.ts'
import type { Telemetry } from './telemetry/telemetry.ts'
import { registerApiDocs } from './api-docs/api-docs.ts'
import { createPlants } from './plants/repository.ts'
import { plantsRoutes } from './plants/routes.ts'

export interface AppOptions {
  config: Config
  database: Database
  lifecycle: Lifecycle
  observers?: Telemetry[]
  /** Where the log goes, standard output by default. */
  logStream?: { write (line: string): void }
}

/** What the service is about. A domain is a line here: it puts it behind the guard and into the document. */
async function registerDomains (guarded: FastifyInstance, { config, database }: AppOptions): Promise<void> {
  await guarded.register(plantsRoutes, {
    plants: createPlants(database, config.WRITE_BATCH ?? 500)
  })
}

/** The service but for its socket, signals and database. The order of registration is the architecture. */
export async function buildApp (parts: AppOptions, register = registerDomains) {
  const { config, database, lifecycle, observers = [], logStream } = parts
  const app = Fastify({
    ...serverLimits,
    // Fastify's own 503 has another shape, and stopping is announced by `Connection: close` long before.
    return503OnClosing: false,
    clientErrorHandler: handleClientError,
    frameworkErrors: handleError,
    logger: {
      level: config.LOG_LEVEL,
      stream: logStream,
      // In words, which every log system can read; pino's own are numbers.
      formatters: { level: (level) => ({ level }) },
      timestamp: () => `,"time":"${new Date().toISOString()}"`
    },
    genReqId: newRequestId,
    trustProxy: config.TRUSTED_PROXIES ?? false,
    logController: new DebugRequestLog(),
    childLoggerFactory: createRequestLog,
    bodyLimit: config.BODY_LIMIT
  }).withTypeProvider<TypeBoxTypeProvider>()

  // First, to see what the rules below refuse.
  const readiness = createReadiness(database, lifecycle)
  for (const observer of observers) observer.watch(app, database, readiness)
  database.onWarning((what, details) => app.log.warn(details, what))
  registerErrorLog(app)
  app.setErrorHandler(handleError)
  app.setValidatorCompiler(compileValidator)
  setStandardHeaders(app)
  readJsonBodies(app)
  throttleUnauthenticated(app.server, app.routing, probePaths)
  rejectMalformedRequests(app)
  limitBodyMemory(app)
  manageConnections(app, lifecycle)
  limitConnections(app, config.MAX_CONNECTIONS)

  await app.register(healthRoutes, { readiness })
  await registerApiDocs(app, { docs: config.DOCS === 'on' })
  await app.register(async (guarded) => {
    await requireBearer(guarded, createAuthenticate(createTokens(database), config.TOKEN_CACHE_TTL))
    guarded.addHook('onRequest', rejectMalformedQuery)
    await register(guarded, parts)
  })
  return app
}

const isDebugged = new Set(['debug', 'trace'])

// Two lines for each request would cost as much as the request, and refusals
// and faults have lines of their own: what goes well is only logged at debug.
class DebugRequestLog extends LogController {
  override incomingRequest (): void {}
  override requestCompleted (_error: unknown, request: FastifyRequest, reply: FastifyReply): void {
    // What would be logged takes longer to gather than all else that is done for the log.
    if (!isDebugged.has(request.server.log.level)) return
    // The pattern of the route, since a caller may have put a token into the URL.
    request.log.debug({
      method: request.method,
      route: request.routeOptions.url,
      status: reply.statusCode,
      ms: reply.elapsedTime
    }, 'answered')
  }
}
