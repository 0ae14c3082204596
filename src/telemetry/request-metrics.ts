// Metrics of requests: their number, duration, status and errors.
import { Counter, Gauge, Histogram, type Registry } from '@prometheus-io/client'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { catalogue, errors, type ApiError } from '../errors.ts'
import { toApiError } from '../http/responses.ts'
import { durationBuckets } from './buckets.ts'

const rejectionReasons = ['missing', 'malformed', 'unknown', 'revoked', 'expired', 'read_only']

/** Call this on the root instance before any route is added. */
export function measureRequests (app: FastifyInstance, registry: Registry): void {
  measureDurations(app, registry)
  countErrors(app, registry)
  let inFlight = 0
  app.addHook('onRequest', (_request, _reply, done) => {
    inFlight++
    done()
  })
  app.addHook('onResponse', (_request, _reply, done) => {
    inFlight--
    done()
  })
  registry.registerMetric(new Gauge({
    name: 'http_requests_in_flight',
    help: 'Requests whose response has not been sent in full',
    registers: [],
    collect () { this.set(inFlight) }
  }))
}

function measureDurations (app: FastifyInstance, registry: Registry): void {
  const duration = new Histogram({
    name: 'http_request_duration_seconds',
    help: 'Time from the head of a request to the end of its response, by route pattern',
    labelNames: ['method', 'route', 'status'],
    buckets: durationBuckets,
    registers: [registry]
  })
  app.addHook('onRoute', ({ method, url, schema }) => {
    // Routes without a tag, such as /docs, get a series at their first request.
    if (schema?.tags === undefined) return
    const successes = Object.keys(schema.response as object).filter((status) => status.startsWith('2'))
    for (const status of [...successes, 500, 503]) {
      for (const one of [method].flat()) duration.zero({ method: one, route: url, status })
    }
  })
  app.addHook('onResponse', ({ method, routeOptions: { url: route } }, reply, done) => {
    const { statusCode: status, elapsedTime } = reply
    // An unknown path can come with any of 35 methods: one series is enough.
    const labels = route === undefined ? { method: 'any', route: 'none', status } : { method, route, status }
    duration.observe(labels, elapsedTime / 1000)
    done()
  })
}

function countErrors (app: FastifyInstance, registry: Registry): void {
  const responses = new Counter({
    name: 'plant_store_errors_total',
    help: 'Error responses, by the error number in their body',
    labelNames: ['error'],
    registers: [registry]
  })
  const rejected = new Counter({
    name: 'plant_store_credentials_refused_total',
    help: 'Requests rejected because of their token',
    labelNames: ['reason'],
    registers: [registry]
  })
  const shed = new Counter({
    name: 'plant_store_overload_refusals_total',
    help: 'Requests shed because a queue was full, by the queue: of token look-ups or of an operation',
    labelNames: ['kind'],
    registers: [registry]
  })
  shed.inc({ kind: 'token' }, 0)
  for (const reason of rejectionReasons) rejected.inc({ reason }, 0)
  app.addHook('onRoute', ({ schema }) => {
    if (schema?.operationId !== undefined) shed.inc({ kind: schema.operationId }, 0)
  })
  // All domains have defined their errors when the app is ready.
  app.addHook('onReady', async () => {
    for (const error of catalogue.keys()) responses.inc({ error }, 0)
  })
  app.addHook('onError', (request, _reply, error, done) => {
    const apiError = toApiError(error, errors.INTERNAL)
    responses.inc({ error: apiError.number })
    if (apiError.name.startsWith('TOKEN_')) rejected.inc({ reason: reasonOf(apiError) })
    if (apiError.name === 'OVERLOADED') shed.inc({ kind: queueOf(request) })
    done()
  })
}

/** One of `rejectionReasons`: a label never holds text from the client. */
const reasonOf = ({ name, cause }: ApiError) =>
  typeof cause === 'string' ? cause : name.replace('TOKEN_', '').toLowerCase()

const queueOf = ({ identity, routeOptions: { schema } }: FastifyRequest) =>
  identity === null ? 'token' : String(schema?.operationId)
