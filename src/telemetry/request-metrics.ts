// Metrics of requests: their number, duration, status and errors.
import type { FastifyInstance } from 'fastify'
import { catalogue } from '../errors.ts'
import { jwtRejections } from '../events.ts'
import { durationBuckets, type Metrics } from './registry.ts'

const rejectionReasons = ['missing', 'unknown', 'revoked', 'read_only', 'scope_missing', ...jwtRejections]

/** The status of a request if the client left before the response began, as in nginx's log. */
const abandoned = 499

export function measureRequests (app: FastifyInstance, metrics: Metrics): void {
  const durations = metrics.histogram('http_request_duration_seconds',
    'Time from the head of a request to the end of its response, by route pattern',
    durationBuckets, 'method', 'route', 'status')
  let inFlight = 0
  metrics.gauge('http_requests_in_flight', 'Requests whose response has not ended',
    function () { this.set(inFlight) })

  app.addHook('onRoute', ({ method, url, schema }) => {
    // Create the series of tagged routes now. A route such as /docs gets its series at its first request.
    if (schema?.tags === undefined) return
    const successes = Object.keys(schema.response as object).filter((status) => status.startsWith('2'))
    for (const status of [...successes, 500, 503]) {
      for (const one of [method].flat()) durations.zero({ method: one, route: url, status })
    }
  })
  app.addHook('onRequest', ({ method, routeOptions: { url: route } }, reply, done) => {
    inFlight++
    // Not `onResponse`: Fastify skips this hook if the client leaves before the end of the response.
    reply.raw.once('close', () => {
      inFlight--
      const status = reply.raw.headersSent ? reply.statusCode : abandoned
      // Requests for unknown paths share one series per status.
      const kind = route === undefined ? { method: 'any', route: 'none' } : { method, route }
      durations.observe({ ...kind, status }, reply.elapsedTime / 1000)
    })
    done()
  })
  countErrors(app, metrics)
}

function countErrors (app: FastifyInstance, { counter }: Metrics): void {
  const responses = counter('plant_store_errors_total',
    'Error responses, and connections closed at MAX_CONNECTIONS (50302), by error number', 'error')
  const rejected = counter('plant_store_credentials_refused_total',
    'Requests rejected because of their token', 'reason', rejectionReasons)
  const shed = counter('plant_store_overload_refusals_total',
    'Requests and connections shed, by what was full: the queue of look-ups (token) or of an operation, ' +
      'the connections, or the memory for files of /docs', 'kind', ['token', 'connection', 'docs'])
  app.addHook('onRoute', ({ schema }) => {
    if (schema?.operationId !== undefined) shed.inc({ kind: schema.operationId }, 0)
  })
  // Wait until the app is ready. Only then does the catalogue contain the errors of all routes.
  app.addHook('onReady', async () => {
    for (const error of catalogue.keys()) responses.inc({ error }, 0)
  })
  app.errorLog.onError = ({ name, number, cause }, kind) => {
    responses.inc({ error: number })
    if (name.startsWith('TOKEN_')) {
      // The reason is one of `rejectionReasons`, never a text from the client.
      rejected.inc({ reason: typeof cause === 'string' ? cause : name.replace('TOKEN_', '').toLowerCase() })
    }
    if (name === 'OVERLOADED') shed.inc({ kind })
  }
}
