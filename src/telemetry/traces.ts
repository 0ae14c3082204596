// Spans by OTLP/HTTP, of requests and of the statements that served them: loaded only where
// OTEL_EXPORTER_OTLP_ENDPOINT is set. Exporter and resource read their other variables themselves.
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
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify'
import { origin, statementEvents, type StatementEvent } from '../events.ts'
import { readTraceparent } from '../http/trace-context.ts'

export interface TracesOptions {
  version: string
  /** One of the names of OTEL_TRACES_SAMPLER. */
  sampler: string
  /** The share of the traces that begin here, 0 to 1. */
  ratio: number
}

/** How long a stop waits for a collector to take the last spans. */
const shutdownMs = 1000

/**
 * An observer whose spans wait for the collector, up to 2,048 of them; further ones
 * are dropped, and nobody waits for them.
 */
export function openTraces ({ version, sampler, ratio }: TracesOptions) {
  const provider = new TracerProvider({
    sampler: samplerOf(sampler, ratio),
    resource: defaultResource()
      .merge(resourceFromAttributes({ 'service.name': 'plant-store', 'service.version': version }))
      .merge(detectResources({ detectors: [envDetector] })),
    spanProcessors: [new BatchSpanProcessor({ exporter: new OTLPTraceExporter() })]
  })
  const tracer = provider.getTracer('plant-store', version)
  const onStatement = (event: StatementEvent) => traceStatement(tracer, event)
  statementEvents.subscribe(onStatement)

  return {
    watch: (app: FastifyInstance) => traceRequests(app, tracer),

    /** Sends what waits, unless the collector takes too long. */
    async close (): Promise<void> {
      statementEvents.unsubscribe(onStatement)
      const { promise: tooLate, resolve } = Promise.withResolvers<void>()
      const timer = setTimeout(resolve, shutdownMs)
      await Promise.race([provider.shutdown().catch(() => {}), tooLate])
      clearTimeout(timer)
    }
  }
}

function samplerOf (name: string, ratio: number): Sampler {
  const root = name.endsWith('always_off')
    ? new AlwaysOffSampler()
    : name.endsWith('traceidratio') ? new TraceIdRatioBasedSampler(ratio) : new AlwaysOnSampler()
  return name.startsWith('parentbased_') ? new ParentBasedSampler({ root }) : root
}

/** A span for each request, whose ids stand in all its lines of the log. */
function traceRequests (app: FastifyInstance, tracer: Tracer): void {
  const spans = new WeakMap<FastifyRequest, Span>()

  app.addHook('onRequest', (request: FastifyRequest, reply: FastifyReply, done) => {
    // The pattern of the route, since a caller may have put a token into the URL.
    const { method, routeOptions: { url: route } } = request
    const attributes = { 'http.request.method': method, ...route !== undefined && { 'http.route': route } }
    const name = route === undefined ? method : `${method} ${route}`
    const span = tracer.startSpan(name, { kind: SpanKind.SERVER, attributes }, parentOf(request))
    const { traceId, spanId } = span.spanContext()
    request.log = reply.log = request.log.child({ trace_id: traceId, span_id: spanId })
    spans.set(request, span)
    origin.run(span, done)
  })

  app.addHook('onResponse', (request, { statusCode }, done) => {
    const span = spans.get(request)
    span?.setAttribute('http.response.status_code', statusCode)
    if (statusCode >= 500) span?.setStatus({ code: SpanStatusCode.ERROR })
    span?.end()
    done()
  })
}

function parentOf ({ headers }: FastifyRequest) {
  const caller = readTraceparent(headers.traceparent as string | undefined)
  return caller === undefined
    ? ROOT_CONTEXT
    : trace.setSpanContext(ROOT_CONTEXT, {
      traceId: caller.traceId,
      spanId: caller.parentId,
      traceFlags: caller.isSampled ? TraceFlags.SAMPLED : TraceFlags.NONE,
      isRemote: true
    })
}

/** A batch is one statement of many requests: part of the first one's trace, with links to the others. */
function traceStatement (tracer: Tracer, { name, startedAt, error, origin }: StatementEvent): void {
  const spans = [origin].flat() as Array<Span | undefined>
  const requests = spans.filter((span) => span?.isRecording()) as Span[]
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
