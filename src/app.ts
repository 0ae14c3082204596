// Builds the app with metrics and traces. commands/serve.ts opens the database, listens, and handles signals.
import { Type } from '@sinclair/typebox'
import Fastify from 'fastify'
import { createBearer, requireScope } from './access/bearer.ts'
import { limitFailedAuth, limitUsers } from './access/rate-limits.ts'
import { createAuthenticator } from './access/token-cache.ts'
import { createTokens } from './access/tokens.ts'
import { registerApiDocs } from './api-docs/api-docs.ts'
import type { Config } from './config.ts'
import type { Database } from './database/database.ts'
import { domains as allDomains, tableNames, type Domain } from './domains.ts'
import { connectionEvents } from './telemetry-events.ts'
import { allowOrigins } from './http/cors.ts'
import { readJsonBodies } from './http/json.ts'
import { createRequestLog, currentTime, registerErrorLog } from './http/log.ts'
import { maxPathLength, rejectMalformedRequests, rewriteUrl } from './http/request-checks.ts'
import { logRequests } from './http/request-log.ts'
import { handleError, setStandardHeaders, StreamErrors } from './http/responses.ts'
import { compileValidator } from './http/validation.ts'
import { createAppServer } from './http/wire/app-server.ts'
import type { Lifecycle } from './http/wire/server.ts'
import { MemoryBudget } from './scheduling/memory-budget.ts'
import { createReadiness, healthRoutes, probePaths } from './telemetry/health.ts'

export interface AppOptions {
  config: Config
  database: Database
  lifecycle: Lifecycle
  /** Receives the log lines. Standard output by default. */
  logStream?: { write (line: string): void }
}

/** Timeouts are in ms. */
const serverLimits = {
  // Must be at least `headersTimeout`: Node does not enforce a shorter `requestTimeout`.
  requestTimeout: 30_000,
  headersTimeout: 15_000,
  connectionsCheckingInterval: 1000,
  // request-checks.ts rejects requests without a Host header. Node's own error response would have no body.
  requireHostHeader: false,
  // Joins two Host, Authorization or Content-Type headers into an invalid value. Node would use the first.
  joinDuplicateHeaders: true,
  // Gives a request without a body a stream that has already ended. A list request takes 5 % less time.
  optimizeEmptyRequests: true
}
/** A connection may have no traffic for this long during a request. */
const connectionTimeoutMs = 60_000

/** Fastify runs hooks in the order of their registration, so the order of the calls below matters. */
export async function buildApp (options: AppOptions, domains: Domain[] = allDomains) {
  const { config, database, lifecycle, logStream } = options
  const serverOptions = { ...serverLimits, keepAliveTimeout: config.KEEP_ALIVE_TIMEOUT }
  const server = createAppServer(lifecycle, config.MAX_CONNECTIONS, serverOptions, connectionTimeoutMs)
  const app = Fastify({
    ...server.options,
    // Serve requests even during a shutdown. By default, Fastify would reject them.
    return503OnClosing: false,
    // By default, a plugin that takes 10 s to load on a busy machine would end the start.
    pluginTimeout: 0,
    rewriteUrl,
    routerOptions: { maxParamLength: maxPathLength },
    logger: {
      level: config.LOG_LEVEL,
      stream: logStream,
      // Write level names and ISO times instead of pino's numbers, which log systems do not understand.
      formatters: { level: (level) => ({ level }) },
      timestamp: currentTime
    },
    trustProxy: config.TRUSTED_PROXIES ?? false,
    logController: new StreamErrors({ disableRequestLogging: true }),
    childLoggerFactory: createRequestLog,
    bodyLimit: config.BODY_LIMIT,
    // Do not use setValidatorCompiler: Fastify ignores it in plugins that call addSchema, and uses Ajv there.
    // The cast is needed because Fastify's type accepts only Ajv's compilers.
    schemaController: { compilersFactory: { buildValidator: () => compileValidator as never } }
  })

  const own = createAuthenticator(createTokens(database, config.MAX_QUEUED), config.TOKEN_CACHE_TTL)
  const { authenticator, serveMetadata } = config.JWT_ISSUER === undefined
    ? { authenticator: own }
    : (await import('./access/jwt/jwt.ts')).acceptJwts(app, config, own)
  const limitGuesses = config.FAILED_AUTH_RATE && limitFailedAuth(config.FAILED_AUTH_RATE)
  const requireToken = createBearer(app, authenticator, probePaths, limitGuesses)

  const readiness = createReadiness(() => database.probe(tableNames), lifecycle)
  registerErrorLog(app)
  logRequests(app, config.LOG_REQUESTS)
  if (config.METRICS_PORT !== undefined) {
    await (await import('./telemetry/metrics.ts')).openMetrics(app, config, database, readiness)
  }
  if (config.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT ?? config.OTEL_EXPORTER_OTLP_ENDPOINT) {
    (await import('./telemetry/traces.ts')).openTraces(app, config)
  }
  let hasFailed = false
  connectionEvents.subscribe(({ event, error: err }) => {
    if (event === 'timed_out') app.log.warn('the database was unresponsive: replacing a connection')
    // The service also works with fewer connections, so no failed request would tell of the failure.
    if (event === 'failed' && !hasFailed) app.log.warn({ err }, 'a database connection could not be opened')
    if (event === 'failed' || event === 'opened') hasFailed = event === 'failed'
  })
  app.setErrorHandler(handleError)
  setStandardHeaders(app)
  const preflight = config.CORS_ORIGIN === undefined ? undefined : allowOrigins(app, config.CORS_ORIGIN)
  rejectMalformedRequests(app, preflight)
  readJsonBodies(app)
  server.attach(app)
  const budget = new MemoryBudget(config.MEMORY_BUDGET)

  serveMetadata?.()
  await app.register(healthRoutes, { readiness })
  await registerApiDocs(app, budget, { docs: config.DOCS === 'on', issuer: config.JWT_ISSUER })
  await app.register(async (guarded) => {
    await requireToken(guarded)
    if (config.USER_RATE) limitUsers(guarded, config.USER_RATE, config.USER_BURST)
    // Unless a route has a schema for its query, the route accepts no parameters.
    const querystring = Type.Object({}, { additionalProperties: false })
    guarded.addHook('onRoute', (route) => { route.schema = { querystring, ...route.schema } })
    guarded.addHook('onRoute', requireScope)
    for (const { register } of domains) register(guarded, database, config, budget)
  })
  return app
}
