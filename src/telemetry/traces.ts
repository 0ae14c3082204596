// Sends spans of requests and statements by OTLP/HTTP. Loaded only if OTEL_EXPORTER_OTLP_ENDPOINT is set.
// The OpenTelemetry libraries themselves read further environment variables.
import { setTimeout } from 'node:timers/promises'
import {
  ROOT_CONTEXT, SpanKind, SpanStatusCode, trace, TraceFlags, type Span, type Tracer
} from '@opentelemetry/api'
import { OTLPTraceExporter } from '@opentelemetry/exporter-trace-otlp-http'
import {
  defaultResource, detectResources, envDetector, resourceFromAttributes
} from '@opentelemetry/resources'
import {
  AlwaysOffSampler, AlwaysOnSampler, BatchSpanProcessor, ParentBasedSampler, TraceIdRatioBasedSampler,
  TracerProvider, type Sampler
} from '@opentelemetry/sdk-trace'
import type { FastifyInstance } from 'fastify'
import type { Config } from '../config.ts'
import { requestContext, statementEvents, type StatementEvent } from '../events.ts'
import { readTraceparent } from '../http/request-log.ts'

/** How long a shutdown waits for the collector to accept the last spans. */
const flushTimeoutMs = 1000

/** Queues up to 2,048 spans, and drops further spans. No request waits for the collector. */
export function openTraces (version: string, config: Config) {
  const provider = new TracerProvider({
    sampler: createSampler(config.OTEL_TRACES_SAMPLER, config.OTEL_TRACES_SAMPLER_ARG),
    resource: defaultResource()
      .merge(resourceFromAttributes({ 'service.name': 'plant-store', 'service.version': version }))
      .merge(detectResources({ detectors: [envDetector] })),
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter() })]
  })
  const tracer = provider.getTracer('plant-store', version)
  statementEvents.subscribe((event) => traceStatement(tracer, event))

  return {
    instrument: (app: FastifyInstance) => traceRequests(app, tracer),

    /** Sends the queued spans. Gives up after `flushTimeoutMs`. */
    async close (): Promise<void> {
      const timedOut = setTimeout(flushTimeoutMs, undefined, { ref: false })
      await Promise.race([provider.shutdown().catch(() => {}), timedOut])
    }
  }
}

/** `name`: a value of OTEL_TRACES_SAMPLER. `ratio`: the share of new traces to sample. */
function createSampler (name: string, ratio: number): Sampler {
  const root = name.endsWith('always_off')
    ? new AlwaysOffSampler()
    : name.endsWith('traceidratio') ? new TraceIdRatioBasedSampler(ratio) : new AlwaysOnSampler()
  return name.startsWith('parentbased_') ? new ParentBasedSampler({ root }) : root
}

/** Creates a span for each request. Adds the ids of the span to the log lines of the request. */
function traceRequests (app: FastifyInstance, tracer: Tracer): void {
  app.addHook('onRequest', (request, reply, done) => {
    // Record the route's pattern, not the URL, which may contain a token.
    const { method, routeOptions: { url: route } } = request
    const attributes = { 'http.request.method': method, ...route !== undefined && { 'http.route': route } }
    const name = route === undefined ? method : `${method} ${route}`
    const parent = readTraceparent(request.headers.traceparent)
    const context = parent === undefined ? ROOT_CONTEXT : trace.setSpanContext(ROOT_CONTEXT, parent)
    const span = tracer.startSpan(name, { kind: SpanKind.SERVER, attributes }, context)
    const { traceId, spanId } = span.spanContext()
    const { id: reqId, log: { level } } = request
    request.log = app.log.child({ reqId, trace_id: traceId, span_id: spanId }, { level })
    // Not `onResponse`: Fastify skips this hook if the client leaves before the end of the response.
    reply.raw.once('close', () => {
      const { raw: { headersSent }, statusCode } = reply
      if (headersSent) span.setAttribute('http.response.status_code', statusCode)
      if (statusCode >= 500) span.setStatus({ code: SpanStatusCode.ERROR })
      span.end()
    })
    requestContext.run(span, done)
  })
}

/** The span of a batch is a child of the first request's span, and links to the other requests' spans. */
function traceStatement (tracer: Tracer, { name, startedAt, error, requestContext }: StatementEvent): void {
  const spans = [requestContext].flat() as Array<Span | undefined>
  // Not `isRecording`: the span has ended if the client has left.
  const isSampled = (span?: Span) => span?.spanContext().traceFlags === TraceFlags.SAMPLED
  const requests = spans.filter(isSampled) as Span[]
  const [first, ...others] = requests
  if (first === undefined) return
  const span = tracer.startSpan(name, {
    kind: SpanKind.CLIENT,
    startTime: startedAt,
    attributes: {
      'db.system.name': 'postgresql',
      'db.query.summary': name,
      ...others.length > 0 && { 'db.operation.batch.size': requests.length }
    },
    links: others.map((other) => ({ context: other.spanContext() }))
  }, trace.setSpan(ROOT_CONTEXT, first))
  if (error !== undefined) span.setStatus({ code: SpanStatusCode.ERROR })
  span.end()
}
