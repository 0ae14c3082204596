// Tests traces, and that metrics, traces and JWTs are loaded only when they are on.
import { once } from 'node:events'
import type { ServerResponse } from 'node:http'
import { registerHooks } from 'node:module'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { setImmediate } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { statementEvents, traceFaultEvents } from '../../src/telemetry-events.ts'
import { readTraceparent } from '../../src/http/log.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'

// Register a load hook before the app is imported, because the hook does not see earlier imports.
const loaded: string[] = []
registerHooks({
  load (url, context, next) {
    loaded.push(url)
    return next(url, context)
  }
})
const { startApp } = await import('../support/app.ts')
const isLoaded = (name: string) => loaded.some((url) => url.includes(`/node_modules/${name}/`))

const withoutDatabase = { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' }
const { env } = process

t.test('metrics, traces and JWTs are loaded only when they are on', async (t) => {
  const settings = {
    '@prometheus-io': { METRICS_PORT: '0' },
    '@opentelemetry': { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1' },
    jose: { JWT_ISSUER: 'http://127.0.0.1:1', JWT_AUDIENCE: 'plants' }
  }
  await startApp(t, withoutDatabase)
  t.ok(isLoaded('fastify'))
  t.notOk(loaded.some((url) => /src\/(telemetry\/(metrics.*|traces)|access\/jwt\/jwt)\.ts/.test(url)))
  for (const name of Object.keys(settings)) t.notOk(isLoaded(name), name)
  for (const [name, environment] of Object.entries(settings)) {
    await startApp(t, { ...withoutDatabase, ...environment })
    t.ok(isLoaded(name), name)
  }
})

type Field = 'name' | 'traceId' | 'spanId' | 'parentSpanId' | 'startTimeUnixNano' | 'endTimeUnixNano'
type Span = Record<Field, string> &
  { attributes: Record<string, unknown>, status: { code: number }, links?: Array<{ spanId: string }> }

const valuesOf = ({ attributes }: { attributes: Array<{ key: string, value: object }> }) =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]))

const byEndpoint = (collector: string) => ({ OTEL_EXPORTER_OTLP_ENDPOINT: collector })

async function traced (
  t: Test, environment: Record<string, string> = {}, hangs = false,
  endpoint: (collector: string) => Record<string, string> = byEndpoint
) {
  // Import this file late, because it imports jose.
  const { startServer } = await import('../support/identity-provider.ts')
  const spans: Span[] = []
  const asked = Promise.withResolvers<ServerResponse>()
  const { issuer: collector } = await startServer(t, async (request, response) => {
    asked.resolve(response)
    t.equal(request.url, '/v1/traces')
    for (const { resource, scopeSpans } of JSON.parse(await text(request)).resourceSpans) {
      for (const span of scopeSpans.flatMap(({ spans }: { spans: unknown }) => spans)) {
        spans.push({ ...span, attributes: valuesOf(span), resource: valuesOf(resource) })
      }
    }
    if (!hangs) response.end('{}')
  })
  const settings = { ...endpoint(collector), ...environment }
  // The exporter reads its settings from `process.env`.
  process.env = { ...env, ...settings }
  t.teardown(() => { process.env = env })
  const service = await startApp(t, settings)
  const { authorization } = await service.as('alice')
  return {
    ...service,
    /** The collector's response to the first export. */
    asked: asked.promise,
    create: (id: number, trace = {}) => service.app.inject({
      method: 'POST', url: '/plants', headers: { authorization, ...trace }, payload: { id, name: 'x' }
    }),
    /** Makes the app send its queued spans. Resolves to all spans that the collector has received. */
    async sent (): Promise<Span[]> {
      await service.app.close()
      return spans
    }
  }
}

const [traceId, parentId] = ['4bf92f3577b34da6a3ce929d0e0e4736', '00f067aa0ba902b7']
const sampled = { traceparent: `00-${traceId}-${parentId}-01` }

t.test('a traceparent is ids and a flag, which the log also has without an exporter', async (t) => {
  // Only the lowest bit of the flags has a meaning: sampled.
  for (const [flags, traceFlags] of [['00', 0], ['01', 1], ['03', 1], ['fe', 0]] as const) {
    t.strictSame(readTraceparent(`00-${traceId}-${parentId}-${flags}`),
      { traceId, spanId: parentId, traceFlags, isRemote: true })
  }
  for (const header of [undefined, 'x', `01-${traceId}-${parentId}-01`, `ff-${traceId}-${parentId}-01`,
    `00-${traceId.toUpperCase()}-${parentId}-01`, `00-${'0'.repeat(32)}-${parentId}-01`,
    `00-${traceId}-${'0'.repeat(16)}-01`, `00-${traceId}-${parentId}-1`, `00-${traceId}-${parentId}-01-x`,
    ` 00-${traceId}-${parentId}-01`, `00-${traceId}-${parentId}-01, 00-${traceId}-${parentId}-01`,
    `00-${traceId.slice(1)}-${parentId}-01`, `00-${traceId}-${parentId}x-01`]) {
    t.equal(readTraceparent(header), undefined, String(header))
  }
  const { app, log } = await startApp(t, withoutDatabase)
  await app.inject({ url: '/plants', headers: sampled })
  t.match(JSON.parse(log[0] as string), { error: 40101, trace_id: traceId, span_id: parentId })
})

t.test('a request is a span of the client\'s trace, its statement a child; both show faults', async (t) => {
  const { app, create, sent, log, url } = await traced(t,
    { OTEL_RESOURCE_ATTRIBUTES: 'deployment.environment.name=test', OTEL_TRACES_SAMPLER: 'always_on' })
  await create(1, sampled)
  await create(1, sampled)
  await app.inject('/nowhere')
  await sql(url, 'drop table plants')
  t.equal((await create(2)).statusCode, 503)
  const all = await sent()
  t.ok(all.some(({ name }) => name === 'GET'), 'without a route, the name of a span is its method')
  const failed = all.filter(({ status }) => status.code === 2).map(({ name }) => name)
  t.strictSame(failed.toSorted(), ['POST /plants', 'plants-insert'])
  const spans = all.filter((span) => span.traceId === traceId)
  const [request, rejected] = spans.filter(({ name }) => name === 'POST /plants')
  t.match(request, {
    kind: 2,
    parentSpanId: parentId,
    attributes: { 'http.request.method': 'POST', 'http.route': '/plants', 'http.response.status_code': 200 },
    resource: { 'service.name': 'plant-store', 'deployment.environment.name': 'test' }
  })
  const statement = spans.find(({ name, parentSpanId }) =>
    name === 'plants-insert' && parentSpanId === request?.spanId)
  t.match(statement, { kind: 3, attributes: { 'db.system.name': 'postgresql' } })
  t.ok(BigInt(statement?.startTimeUnixNano as string) > BigInt(request?.startTimeUnixNano as string))
  t.ok(BigInt(statement?.endTimeUnixNano as string) < BigInt(request?.endTimeUnixNano as string))
  const line = log.map((line) => JSON.parse(line)).find(({ error }) => error === 40019)
  t.match(line, { trace_id: traceId, span_id: rejected?.spanId })
})

t.test('OTEL_EXPORTER_OTLP_TRACES_ENDPOINT alone turns traces on', async (t) => {
  const { create, sent } = await traced(t, {}, false, (collector) =>
    ({ OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${collector}/v1/traces` }))
  await create(1)
  t.ok((await sent()).some(({ name }) => name === 'POST /plants'))
})

t.test('the span of a list that the service cuts is an error', async (t) => {
  const { as, database, listen, sent, url } = await traced(t)
  await sql(url, "insert into plants select 'bob', id, 'n' from generate_series(1, 1000) as id")
  const { authorization } = await as('bob')
  const address = await listen()
  t.capture(database, 'readLong', () => Promise.reject(new Error('the connection is lost')))
  const response = await fetch(`${address}/plants`, { headers: { authorization } })
  await t.rejects(response.text(), { message: 'terminated' })
  t.match((await sent()).find(({ name }) => name === 'GET /plants'), {
    attributes: { 'http.response.status_code': 200, 'error.type': 'aborted' }, status: { code: 2 }
  })
})

t.test('a batch is one span with links to all its requests', async (t) => {
  const { create, sent } = await traced(t)
  await create(100)
  await Promise.all(Array.from({ length: 20 }, (_, id) => create(200 + id)))
  const spans = await sent()
  const requests = new Set(spans.filter(({ name }) => name === 'POST /plants').map(({ spanId }) => spanId))
  t.equal(requests.size, 21)
  const batches = spans.filter(({ name, attributes }) =>
    name === 'plants-insert' && attributes['db.operation.batch.size'] !== undefined)
  t.ok(batches.length > 0)
  for (const { links = [], attributes, parentSpanId } of batches) {
    t.ok(requests.has(parentSpanId as string))
    for (const { spanId } of links) t.ok(requests.has(spanId))
    t.equal(attributes['db.operation.batch.size'], links.length + 1)
  }
})

t.test('only the configured share of traces is sent, and none that the client does not sample', async (t) => {
  const notSampled = { traceparent: `00-${traceId}-${parentId}-00` }
  for (const [environment, headers] of [
    [{ OTEL_TRACES_SAMPLER: 'traceidratio', OTEL_TRACES_SAMPLER_ARG: '0' }, {}],
    [{ OTEL_TRACES_SAMPLER: 'parentbased_always_on' }, notSampled],
    [{ OTEL_TRACES_SAMPLER: 'always_off' }, {}]
  ]) {
    const { create, sent } = await traced(t, environment as Record<string, string>)
    t.equal((await create(350, headers)).statusCode, 200)
    t.strictSame((await sent()).filter(({ name }) => name === 'POST /plants'), [])
  }
})

t.test('a request has a span with its statement when its client leaves before the response', async (t) => {
  const { app, as, listen, sent, url } = await traced(t)
  const { authorization } = await as('bob')
  const operator = await openSession(t, url,
    "begin; insert into plants (owner, id, name) values ('bob', 1, 'Fern')")
  const { hostname, port } = new URL(await listen())
  const closed = once(app.server, 'request').then(([, response]) => once(response, 'close'))
  const client = connect(Number(port), hostname)
  client.write(`POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
    'Content-Type: application/json\r\nContent-Length: 19\r\n\r\n{"id":1,"name":"x"}')
  while ((await sql(url, waitingForLocks)).length === 0) await setImmediate()
  client.resetAndDestroy()
  await closed
  const executed = new Promise((resolve) => statementEvents.subscribe(resolve))
  await operator.query('rollback')
  await executed
  const spans = await sent()
  const request = spans.find(({ name }) => name === 'POST /plants')
  t.strictSame(request?.attributes, { 'http.request.method': 'POST', 'http.route': '/plants' })
  t.equal(spans.find(({ name }) => name === 'plants-insert')?.parentSpanId, request?.spanId)
})

t.test('a collector that is down or hangs affects neither requests nor the shutdown', async (t) => {
  for (const environment of [undefined, { OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:1' }]) {
    const { asked, create, sent } = await traced(t, environment, true)
    t.equal((await create(1)).statusCode, 200)
    await sent()
    if (environment === undefined) t.notOk((await asked).closed, 'the exporter itself waits for 10 s')
  }
})

t.test('traces that do not arrive are counted, and the log has the reason once a minute', async (t) => {
  const { startServer } = await import('../support/identity-provider.ts')
  const partial = '{"partialSuccess":{"rejectedSpans":"1","errorMessage":"over quota"}}'
  for (const [status, body, kind, reason, rounds] of [
    [401, '', 'failed', 'Unauthorized', 2], [404, '', 'failed', 'Not Found', 1],
    [200, partial, 'dropped', /over quota/, 1]
  ] as const) {
    const { issuer: collector } = await startServer(t, async (request, response) => {
      await text(request)
      response.writeHead(status).end(body)
    })
    const settings = { OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: collector, METRICS_PORT: '0', LOG_LEVEL: 'info' }
    process.env = { ...env, ...settings }
    t.teardown(() => { process.env = env })
    const { app, log, metricsUrl } = await startApp(t, { ...withoutDatabase, ...settings })
    for (let round = 0; round < rounds; round++) {
      const reported = new Promise((resolve) => traceFaultEvents.subscribe(resolve))
      // The exporter sends 512 spans at once.
      await Promise.all(Array.from({ length: 512 }, () => app.inject('/livez')))
      t.strictSame(await reported, { kind })
    }
    const lines = log.map((line) => JSON.parse(line)).filter(({ msg }) => msg.startsWith('traces'))
    t.match(lines, [{ level: 'warn', reason, msg: 'traces do not arrive' }])
    t.equal(lines.length, 1)
    const series = await (await fetch(metricsUrl)).text()
    t.match(series, `plant_store_trace_faults_total{kind="${kind}"} ${rounds}`)
  }
})
