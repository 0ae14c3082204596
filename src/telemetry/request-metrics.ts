// The figures of requests: how many, how long, how they end.
import { Counter, Gauge, Histogram, type Registry } from '@prometheus-io/client'
import type { FastifyInstance, FastifyRequest } from 'fastify'
import { catalogue, errors, type ApiError } from '../errors.ts'
import { toApiError } from '../http/responses.ts'
import { seconds } from './buckets.ts'

const credentialFaults = ['missing', 'malformed', 'unknown', 'revoked', 'expired', 'read_only']

/** To be called on the root instance before any route is added. */
export function measureRequests (app: FastifyInstance, registry: Registry): void {
  measureDurations(app, registry)
  countErrors(app, registry)
  let underWay = 0
  app.addHook('onRequest', (_request, _reply, done) => {
    underWay++
    done()
  })
  app.addHook('onResponse', (_request, _reply, done) => {
    underWay--
    done()
  })
  registry.registerMetric(new Gauge({
    name: 'http_requests_in_flight',
    help: 'Requests that have not had all of their answer',
    registers: [],
    collect () { this.set(underWay) }
  }))
}

function measureDurations (app: FastifyInstance, registry: Registry): void {
  const duration = new Histogram({
    name: 'http_request_duration_seconds',
    help: 'From the head of a request to the end of its answer, by the pattern of its route',
    labelNames: ['method', 'route', 'status'],
    buckets: seconds,
    registers: [registry]
  })
  app.addHook('onRoute', ({ method, url, schema }) => {
    // Whatever has no tag, such as the files of the page, appears when it is asked for.
    if (schema?.tags === undefined) return
    const successes = Object.keys(schema.response as object).filter((status) => status.startsWith('2'))
    for (const status of [...successes, 500, 503]) {
      for (const one of [method].flat()) duration.zero({ method: one, route: url, status })
    }
  })
  app.addHook('onResponse', ({ method, routeOptions: { url: route } }, reply, done) => {
    const { statusCode: status, elapsedTime } = reply
    // What is at no route may come with any of 35 methods.
    const labels = route === undefined ? { method: 'any', route: 'none', status } : { method, route, status }
    duration.observe(labels, elapsedTime / 1000)
    done()
  })
}

function countErrors (app: FastifyInstance, registry: Registry): void {
  const answered = new Counter({
    name: 'plant_store_errors_total',
    help: 'Answers that are no success, by the number in their body',
    labelNames: ['error'],
    registers: [registry]
  })
  const refused = new Counter({
    name: 'plant_store_credentials_refused_total',
    help: 'Requests refused for what their token is or lacks',
    labelNames: ['reason'],
    registers: [registry]
  })
  const overloaded = new Counter({
    name: 'plant_store_overload_refusals_total',
    help: 'Requests refused because too many waited, by what they waited for: their token or their operation',
    labelNames: ['kind'],
    registers: [registry]
  })
  overloaded.inc({ kind: 'token' }, 0)
  for (const reason of credentialFaults) refused.inc({ reason }, 0)
  app.addHook('onRoute', ({ schema }) => {
    if (schema?.operationId !== undefined) overloaded.inc({ kind: schema.operationId }, 0)
  })
  // By then every domain has defined its errors.
  app.addHook('onReady', async () => {
    for (const error of catalogue.keys()) answered.inc({ error }, 0)
  })
  app.addHook('onError', (request, _reply, error, done) => {
    const fault = toApiError(error, errors.INTERNAL)
    answered.inc({ error: fault.number })
    if (fault.name.startsWith('TOKEN_')) refused.inc({ reason: wordOf(fault) })
    if (fault.name === 'OVERLOADED') overloaded.inc({ kind: waitedFor(request) })
    done()
  })
}

/** A word of the table above, never anything that a caller sent. */
const wordOf = ({ name, cause }: ApiError) =>
  typeof cause === 'string' ? cause : name.replace('TOKEN_', '').toLowerCase()

const waitedFor = ({ identity, routeOptions: { schema } }: FastifyRequest) =>
  identity === null ? 'token' : String(schema?.operationId)
