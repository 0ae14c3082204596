// Measures requests, errors, statements, connections and tokens. Serves the metrics on a separate port.
// Loaded only if METRICS_PORT is set.
import { once } from 'node:events'
import type { IncomingMessage, ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import {
  collectDefaultMetrics, Counter, Gauge, Histogram, Registry, type CollectFunction
} from '@prometheus-io/client'
import type { FastifyInstance } from 'fastify'
import { LRUCache } from 'lru-cache'
import manifest from '../../package.json' with { type: 'json' }
import type { Config } from '../config.ts'
import type { Database } from '../database/database.ts'
import { newestMigration } from '../database/migrate.ts'
import { catalogue } from '../errors.ts'
import {
  batchEvents, connectionEvents, connectionOutcomes, durabilityEvents, durabilitySettings, jwtEvents,
  jwtRejections, keyEvents, statementEvents, tokenEvents, traceFaultEvents, traceFaults
} from '../telemetry-events.ts'
import { onEnd } from '../http/request-log.ts'
import { createServer } from '../http/wire/server.ts'
import { unreadyReasons, type Readiness } from './health.ts'

/** In seconds. */
const durationBuckets = [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10]

/** Call before adding routes. All known series start at 0: a ratio has no result if a series is missing. */
export async function openMetrics (
  app: FastifyInstance, config: Config, database: Database, readiness: Readiness
): Promise<void> {
  const metrics = createMetrics()
  const build = { version: manifest.version, schema: await newestMigration() }
  metrics.gauge('plant_store_build_info', 'Always 1', function () { this.set(build, 1) }, 'version', 'schema')
  metrics.gauge('plant_store_unready',
    '1 for the reason why the service is not ready, all 0 when it is ready', async function () {
      const unready = await readiness()
      for (const reason of unreadyReasons) this.set({ reason }, reason === unready?.name ? 1 : 0)
    }, 'reason')
  measureRequests(app, metrics)
  measureDatabase(database, metrics)
  if (config.JWT_ISSUER !== undefined) measureJwts(metrics)
  const faults = metrics.counter('plant_store_trace_faults_total',
    'Exports of spans that failed, and warnings of dropped spans', 'kind', traceFaults)
  traceFaultEvents.subscribe(({ kind }) => faults.inc({ kind }))
  await serveMetrics(app, metrics, config)
}

async function serveMetrics (app: FastifyInstance, { registry }: Metrics, config: Config): Promise<void> {
  // Scrapes share a rendering for a second. After a failure, the next scrape renders again.
  const fetchMethod = async () => Buffer.from(await registry.metrics())
  const rendered = new LRUCache({ max: 1, ttl: 1000, fetchMethod })
  const run = ({ method, url }: IncomingMessage, response: ServerResponse) => {
    if (method !== 'GET' || url !== '/metrics') return response.writeHead(404).end()
    rendered.forceFetch('').then(
      (bytes) => response.writeHead(200, { 'content-type': registry.contentType }).end(bytes),
      (error) => response.writeHead(500).end(`${error}\n`))
  }
  // A connection has one response, so pipelined requests do not pile up.
  const { server } = createServer({ run, isLast: () => true }, 50)
  // Closes a connection after five seconds without traffic.
  server.setTimeout(5000)
  // If the app cannot be built, this server must not keep the process alive.
  server.listen(config.METRICS_PORT, config.METRICS_HOST).unref()
  await once(server, 'listening')
  app.addHook('onClose', (_app, done) => { server.close(done).closeAllConnections() })
  const { port } = server.address() as AddressInfo
  app.log.info({ url: `http://${config.METRICS_HOST}:${port}/metrics` }, 'metrics')
}

type Metrics = ReturnType<typeof createMetrics>

function createMetrics () {
  const registry = new Registry()
  const registers = [registry]
  collectDefaultMetrics({ register: registry })
  // promtool rejects the names of these default metrics.
  const misnamed = ['active_handles_total', 'active_requests_total', 'active_resources_total',
    'eventloop_utilization_histogram', 'eventloop_utilization_summary']
  for (const name of misnamed) registry.removeSingleMetric(`nodejs_${name}`)
  return {
    registry,
    /** The series of these label values start at 0. */
    counter (name: string, help: string, label: string, values: Iterable<string | number> = []) {
      const counter = new Counter({ name, help, labelNames: [label], registers })
      for (const value of values) counter.inc({ [label]: value }, 0)
      return counter
    },
    histogram: (name: string, help: string, buckets: number[], ...labelNames: string[]) =>
      new Histogram({ name, help, buckets, labelNames, registers }),
    /** `collect` sets the gauge at each scrape. */
    gauge: (name: string, help: string, collect: CollectFunction<Gauge<string>>, ...labelNames: string[]) =>
      new Gauge({ name, help, collect, labelNames, registers })
  }
}

function measureRequests (app: FastifyInstance, { counter, gauge, histogram }: Metrics): void {
  const durations = histogram('http_request_duration_seconds',
    'Time from the head of a request to the end of its response, by route pattern',
    durationBuckets, 'method', 'route', 'status', 'aborted')
  let inFlight = 0
  gauge('http_requests_in_flight', 'Requests whose response has not ended',
    function () { this.set(inFlight) })
  const responses = counter('plant_store_errors_total',
    'Errors of requests, and connections closed at MAX_CONNECTIONS (50302), by error number',
    'error', catalogue.keys())
  const rejected = counter('plant_store_credentials_refused_total',
    'Requests rejected because of their token', 'reason',
    ['missing', 'unknown', 'revoked', 'read_only', 'scope_missing', ...jwtRejections])
  const shed = counter('plant_store_overload_refusals_total',
    'Requests and connections shed, by what was full: the queue of look-ups (token) or of an operation, ' +
      'the connections, or the memory for files of /docs', 'kind', ['token', 'connection', 'docs'])

  app.addHook('onRoute', ({ method, url, schema }) => {
    // Create the series of tagged routes now. A route such as /docs gets its series at its first request.
    if (schema?.tags === undefined) return
    shed.inc({ kind: schema.operationId }, 0)
    for (const status of [...Object.keys(schema.response as object), 500, 503]) {
      durations.zero({ method: String(method), route: url, status })
    }
    // Only lists are long enough to be cut after their status.
    if (method === 'GET') durations.zero({ method, route: url, status: '200', aborted: 'service' })
  })
  app.addHook('onRequest', (request, reply, done) => {
    const { method, routeOptions: { url: route } } = request
    inFlight++
    onEnd(request, reply, ({ status, ms, ...outcome }) => {
      inFlight--
      // Requests for unknown paths share one series per status.
      const kind = route === undefined ? { method: 'any', route: 'none' } : { method, route }
      durations.observe({ ...kind, status, ...outcome }, ms / 1000)
    })
    done()
  })
  app.errorLog.onError = ({ name, number, cause }, kind) => {
    responses.inc({ error: number })
    if (name.startsWith('TOKEN_')) {
      // The reason is a label value from above, never a text from the client.
      rejected.inc({ reason: typeof cause === 'string' ? cause : name.replace('TOKEN_', '').toLowerCase() })
    }
    if (name === 'OVERLOADED') shed.inc({ kind })
  }
}

function measureDatabase (database: Database, { counter, gauge, histogram }: Metrics): void {
  gauge('plant_store_statements_pending', 'Statements that are queued or in flight, by kind', function () {
    for (const [kind, count] of Object.entries(database.pending())) this.set({ kind }, count)
  }, 'kind')
  const durations = histogram('plant_store_statement_duration_seconds',
    'Time from sending a statement to its result', durationBuckets, 'statement')
  const failed = counter('plant_store_statements_failed_total', 'Statements that failed', 'statement')
  statementEvents.subscribe(({ name, startedAt, error }) => {
    durations.observe({ statement: name }, (performance.now() - startedAt) / 1000)
    failed.inc({ statement: name }, error === undefined ? 0 : 1)
  })
  const batches = histogram('plant_store_batch_size', 'Requests that shared a statement',
    [1, 2, 5, 10, 20, 50, 100, 200, 500], 'batch')
  batchEvents.subscribe(({ name, items }) => batches.observe({ batch: name }, items))
  const connections = counter('plant_store_database_connections_total',
    'Database connections that opened, could not be opened, were lost or timed out',
    'event', connectionOutcomes)
  connectionEvents.subscribe(({ event }) => connections.inc({ event }))
  const tokens = counter('plant_store_token_cache_requests_total',
    'Look-ups in the token cache, by result', 'result', ['hit', 'miss'])
  tokenEvents.subscribe(({ hit }) => tokens.inc({ result: hit ? 'hit' : 'miss' }))
  let off: string[] = []
  durabilityEvents.subscribe((event) => { off = event.off })
  gauge('plant_store_unsafe_setting', '1 for a durability setting of PostgreSQL that is off', function () {
    for (const setting of durabilitySettings) this.set({ setting }, off.includes(setting) ? 1 : 0)
  }, 'setting')
}

function measureJwts ({ counter, gauge }: Metrics): void {
  const checks = counter('plant_store_jwt_checks_total',
    'Checks of JWTs, by result; cached ones check no signature', 'result',
    ['verified', 'cached', 'rejected', 'unavailable'])
  jwtEvents.subscribe(({ result }) => checks.inc({ result }))
  const fetches = counter('plant_store_jwt_key_fetches_total',
    'Fetches of the identity provider\'s keys, by result', 'result', ['succeeded', 'failed'])
  let fetchedAt = performance.now()
  gauge('plant_store_jwt_keys_age_seconds',
    'Time since the keys of the identity provider were fetched, or since the start',
    function () { this.set((performance.now() - fetchedAt) / 1000) })
  keyEvents.subscribe(({ result }) => {
    fetches.inc({ result })
    if (result === 'succeeded') fetchedAt = performance.now()
  })
}
