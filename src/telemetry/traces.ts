// Sends spans of requests and statements by OTLP/HTTP. Loaded only if a setting names a collector. The
// OpenTelemetry libraries read this setting themselves, and further environment variables.
import { setTimeout } from 'node:timers/promises'
import {
  diag, DiagLogLevel, ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, TraceFlags, type Span, type Tracer
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import { defaultResource, envDetector, resourceFromAttributes } from '@opentelemetry/resources'
import {
  BatchSpanProcessor, ParentBasedSampler, TraceIdRatioBasedSampler, TracerProvider, type Sampler
} from '@opentelemetry/sdk-trace'
import type { FastifyBaseLogger, FastifyInstance } from 'fastify'
import manifest from '../../package.json' with { type: 'json' }
import type { Config } from '../config.ts'
import {
  requestContext, statementEvents, traceFaultEvents, type StatementEvent
} from '../telemetry-events.ts'
import { readTraceparent } from '../http/log.ts'
import { onEnd } from '../http/request-log.ts'

/** Call before adding routes. Queues up to 2,048 spans and drops further spans: no request waits for them. */
export function openTraces (app: FastifyInstance, config: Config): void {
  reportFaults(app.log)
  const provider = new TracerProvider({
    sampler: createSampler(config),
    resource: defaultResource().merge(resourceFromAttributes({
      'service.name': 'plant-store', 'service.version': manifest.version, ...envDetector.detect().attributes
    })),
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter() })]
  })
  const tracer = provider.getTracer('plant-store', manifest.version)
  statementEvents.subscribe((event) => traceStatement(tracer, event))

  app.addHook('onRequest', (request, reply, done) => {
    // Record the route's pattern, not the URL, which may contain a token.
    const { id: reqId, log: { level }, method, routeOptions: { url: route } } = request
    const attributes = { 'http.request.method': method, 'http.route': route }
    const name = route === undefined ? method : `${method} ${route}`
    const parent = readTraceparent(request.headers.traceparent)
    const context = parent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent)
    const span = tracer.startSpan(name, { kind: SpanKind.SERVER, attributes }, context)
    const { traceId, spanId } = span.spanContext()
    // Add the ids of the span to the log lines of the request.
    request.log = app.log.child({ reqId, trace_id: traceId, span_id: spanId }, { level })
    onEnd(request, reply, ({ status, aborted }) => {
      if (status !== 499) span.setAttribute('http.response.status_code', status)
      if (aborted) span.setAttribute('error.type', 'aborted')
      if (aborted || status >= 500) span.setStatus({ code: SpanStatusCode.ERROR })
      span.end()
    })
    requestContext.run(span, done)
  })

  // Sends the queued spans. Does not wait long for the collector, so that a shutdown ends in time.
  app.addHook('onClose', async () => {
    const timedOut = setTimeout(Math.min(1000, config.SHUTDOWN_TIMEOUT / 10), undefined, { ref: false })
    await Promise.race([provider.shutdown().catch(() => {}), timedOut])
  })
}

/** Counts what the OpenTelemetry libraries report, and logs it at most once a minute. */
function reportFaults (log: FastifyBaseLogger): void {
  let loggedAt = -Infinity
  const report = (kind: 'failed' | 'dropped') => (...texts: unknown[]) => {
    traceFaultEvents.publish({ kind })
    if (performance.now() - loggedAt < 60_000) return
    loggedAt = performance.now()
    // The libraries report an error as the JSON of its properties.
    const reason = kind === 'failed' ? JSON.parse(texts[0] as string).message : texts.join(' ')
    log.warn({ reason }, 'traces do not arrive')
  }
  const [error, warn] = [report('failed'), report('dropped')]
  const options = { logLevel: DiagLogLevel.WARN, suppressOverrideMessage: true }
  diag.setLogger({ error, warn, info: warn, debug: warn, verbose: warn }, options)
}

function createSampler ({ OTEL_TRACES_SAMPLER: name, OTEL_TRACES_SAMPLER_ARG: ratio }: Config): Sampler {
  const share = name.endsWith('always_off') ? 0 : name.endsWith('always_on') ? 1 : ratio
  const root = new TraceIdRatioBasedSampler(share)
  return name.startsWith('parentbased_') ? new ParentBasedSampler({ root }) : root
}

/** The span of a batch is a child of the first request's span, and links to the other requests' spans. */
function traceStatement (tracer: Tracer, { name, startedAt, error, requestContext }: StatementEvent): void {
  const spans = [requestContext].flat() as Array<Span | undefined>
  // Not `isRecording`: the span has ended if the client has left.
  const [first, ...others] = spans.filter((span): span is Span =>
    span?.spanContext().traceFlags === TraceFlags.SAMPLED)
  if (first === undefined) return
  const span = tracer.startSpan(name, {
    kind: SpanKind.CLIENT,
    startTime: startedAt,
    attributes: {
      'db.system.name': 'postgresql',
      'db.query.summary': name,
      'db.operation.batch.size': others.length > 0 ? others.length + 1 : undefined
    },
    links: others.map((other) => ({ context: other.spanContext() }))
  }, trace.setSpan(ROOT_CONTEXT, first))
  if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR })
  span.end()
}
