// Tests the metrics, and the readiness that they and /readyz show.
import { connect } from 'node:net'
import { setImmediate, setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import manifest from '../../package.json' with { type: 'json' }
import { createToken } from '../../src/access/tokens.ts'
import { tableNames } from '../../src/domains.ts'
import { readConfig } from '../../src/config.ts'
import { ApiError, catalogue, errors } from '../../src/errors.ts'
import { createReadiness, type Readiness } from '../../src/telemetry/health.ts'
import { openMetrics } from '../../src/telemetry/metrics.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { migrations } from '../support/migrations.ts'
import { exchange } from '../support/raw.ts'

async function scrape (url: string): Promise<Record<string, number>> {
  const response = await fetch(url)
  t.match(response.headers.get('content-type'), /^text\/plain; version=0\.0\.4/)
  const lines = (await response.text()).matchAll(/^([^#].*) (\S+)$/gm)
  return Object.fromEntries(Array.from(lines, ([, series, value]) => [series, Number(value)]))
}

/** Scrapes until `isNew` accepts the value. The service updates the values at most once a second. */
async function scrapeUntil (name: string, isNew: (value: number) => boolean, from = metricsUrl) {
  let series
  while (!isNew((series = await scrape(from))[name] as number)) await delay(50)
  return series
}

/** Sends `text` to the metrics port. `closed` resolves to the received text when the connection closes. */
function connectTo (url: string, text: string) {
  const { hostname, port } = new URL(url)
  const socket = connect(Number(port), hostname)
  let received = ''
  socket.on('data', (chunk) => { received += chunk }).on('error', () => {})
  const closed = new Promise<string>((resolve) => { socket.on('close', () => resolve(received)) })
  socket.write(text)
  return { socket, closed }
}

const request = 'GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n'
const countResponses = (received: string) => received.split('HTTP/1.1 200 OK').length - 1

const withoutDatabase = { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' }
const { app, as, database, lifecycle, log, metricsUrl, untilReadiness, url } =
  await startApp(t, { METRICS_PORT: '0', MAX_QUEUED: '1', WRITE_BATCH: '1' })
await app.ready()
// The metrics port closes these connections after some seconds. Open the connections early to save time.
const silent = ['', request.slice(0, 20)].map((text) => connectTo(metricsUrl, text))

t.test('metrics count requests, errors, tokens and statements', async (t) => {
  const alice = await as('alice')
  // On a busy machine a probe of the database may time out.
  t.match(await scrapeUntil('plant_store_unready{reason="database"}', (unready) => unready === 0), {
    'http_request_duration_seconds_count{method="GET",route="/plants",status="200"}': 0,
    'http_request_duration_seconds_count{method="POST",route="/plants",status="503"}': 0,
    'plant_store_overload_refusals_total{kind="createPlant"}': 0,
    'plant_store_credentials_refused_total{reason="revoked"}': 0,
    'plant_store_database_connections_total{event="failed"}': 0,
    'plant_store_database_connections_total{event="timed_out"}': 0,
    [`plant_store_build_info{version="${manifest.version}",schema="${migrations.at(-1)}"}`]: 1
  })

  await alice.create({ id: 1, name: 'Monstera' })
  await alice.create({ id: 1, name: 'Monstera' })
  await alice.list()
  await alice.delete(1)
  await app.inject('/plants')
  await app.inject({ url: '/plants', headers: { authorization: 'Bearer plant_x' } })
  await app.inject(`/nowhere/${'x'.repeat(50)}`)
  const after = await scrapeUntil('plant_store_errors_total{error="40401"}', (count) => count === 1)
  t.match(after, {
    'http_request_duration_seconds_count{method="POST",route="/plants",status="200"}': 1,
    'http_request_duration_seconds_count{method="POST",route="/plants",status="400"}': 1,
    'http_request_duration_seconds_count{method="GET",route="/plants",status="401"}': 2,
    'http_request_duration_seconds_count{method="DELETE",route="/plants/:id",status="204"}': 1,
    'http_request_duration_seconds_count{method="any",route="none",status="404"}': 1,
    'plant_store_errors_total{error="40019"}': 1,
    'plant_store_credentials_refused_total{reason="missing"}': 1,
    'plant_store_credentials_refused_total{reason="malformed"}': 1,
    'plant_store_token_cache_requests_total{result="miss"}': 1,
    'plant_store_token_cache_requests_total{result="hit"}': 3,
    'plant_store_batch_size_sum{batch="plants_create_alone"}': 2,
    'plant_store_statement_duration_seconds_count{statement="tokens-by-hash"}': 1,
    'plant_store_statements_failed_total{statement="plants-insert"}': 0,
    'plant_store_statements_pending{kind="read"}': 0,
    http_requests_in_flight: 0,
    process_resident_memory_bytes: /^\d{7,}$/
  })
  t.notMatch(Object.keys(after).join('\n'), /xxx|alice|plant_x/)

  await Promise.all(Array.from({ length: 20 }, (_, id) => alice.create({ id, name: 'Monstera' })))
  await Promise.all(Array.from({ length: 20 }, () =>
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } })))
  for (const kind of ['createPlant', 'token']) {
    await scrapeUntil(`plant_store_overload_refusals_total{kind="${kind}"}`, (count) => count > 0)
  }
})

t.test('the metrics port serves one path, shares a rendering, and closes each connection', async (t) => {
  t.equal((await app.inject('/metrics')).statusCode, 404)
  for (const path of ['/', '/plants']) t.equal((await fetch(new URL(path, metricsUrl))).status, 404)
  t.equal((await fetch(metricsUrl, { method: 'POST' })).status, 404)
  t.equal(countResponses(await connectTo(metricsUrl, request.repeat(100)).closed), 1)
  const clients = Array.from({ length: 10 }, () => connectTo(metricsUrl, request))
  const received = await Promise.all(clients.map(({ closed }) => closed))
  t.strictSame(received.map(countResponses), Array(10).fill(1))
  // On a slow machine, the scrapes may take longer than a rendering is shared.
  t.ok(new Set(received.join().match(/^process_cpu_seconds_total .*/gm)).size < clients.length)
  t.strictSame(await Promise.all(silent.map(({ closed }) => closed)), ['', ''])
})

t.test('the metrics port accepts fifty connections, and closes those that read nothing', async (t) => {
  const { app, database, metricsUrl } = await startApp(t, { ...withoutDatabase, METRICS_PORT: '0' })
  const clients = Array.from({ length: 60 }, () => connectTo(metricsUrl, ''))
  await Promise.all(clients.slice(50).map(({ closed }) => closed))
  const accepted = clients.slice(0, 50).map(({ socket }) => socket)
  t.notOk(accepted.some(({ destroyed }) => destroyed))
  for (const socket of accepted) socket.pause().write(request.repeat(100))
  const { port } = new URL(metricsUrl)
  await t.rejects(openMetrics(app, readConfig({ METRICS_PORT: port }), database, async () => undefined),
    { message: `listen EADDRINUSE: address already in use 127.0.0.1:${port}` })
  await app.close()
  for (const socket of accepted) socket.destroy()
})

t.test('a scrape shows why the service is not ready, and gets 500 when its collector fails', async (t) => {
  let readiness: Readiness = async () => { throw new Error('readiness is unknown') }
  const { app, database, log } = await startApp(t, withoutDatabase)
  await openMetrics(app, readConfig({ METRICS_PORT: '0' }), database, () => readiness())
  const { url } = JSON.parse(log.at(-1) as string)
  const failed = await fetch(url)
  t.strictSame([failed.status, await failed.text()], [500, 'Error: readiness is unknown\n'])
  readiness = async () => ({ name: 'starting', error: new ApiError(errors.DATABASE_UNAVAILABLE) })
  t.match(await scrape(url),
    { 'plant_store_unready{reason="starting"}': 1, 'plant_store_unready{reason="database"}': 0 })
})

t.test('each error response is counted once, also below Fastify', async (t) => {
  const { listen, metricsUrl } = await startApp(t, { METRICS_PORT: '0' })
  const address = await listen()
  const host = 'Host: x\r\n'
  // These requests reach no route, because Node's parser, Fastify's router or a check rejects them.
  const rejected: Record<string, number> = {
    'garbage\r\n\r\n': 40001,
    'GET /livez HTTP/1.1\r\n\r\n': 40003,
    [`GET /plants/%zz HTTP/1.1\r\n${host}\r\n`]: 40002,
    [`GET /nowhere HTTP/1.1\r\n${host}\r\n`]: 40401,
    [`DELETE /livez HTTP/1.1\r\n${host}\r\n`]: 40501,
    [`DELETE /plants/${'1'.repeat(1001)} HTTP/1.1\r\n${host}\r\n`]: 41401,
    [`GET /livez HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`]: 43101,
    [`XYZ /livez HTTP/1.1\r\n${host}\r\n`]: 50101
  }
  for (const [request, number] of Object.entries(rejected)) {
    const [response] = await exchange(address, [request], { halfClose: true })
    t.match(response?.body, `{"error":${number},`, request.slice(0, 30))
  }
  const series = await scrape(metricsUrl)
  for (const number of catalogue.keys()) {
    const count = Object.values(rejected).includes(number) ? 1 : 0
    t.equal(series[`plant_store_errors_total{error="${number}"}`], count, `${number}`)
  }
})

t.test('a list that the service cuts has an outcome, a count and a line of its own', async (t) => {
  const { as, database, listen, log, metricsUrl, url } = await startApp(t, { METRICS_PORT: '0' })
  await sql(url, "insert into plants select 'alice', id, 'n' from generate_series(1, 20000) as id")
  const { authorization } = await as('alice')
  const address = await listen()
  const cut =
    'http_request_duration_seconds_count{method="GET",route="/plants",status="200",aborted="service"}'
  t.equal((await scrape(metricsUrl))[cut], 0)
  // Before the service reads a page that was queued for long, it checks the token again.
  for (const [index, [reason, line]] of ([
    [new ApiError(errors.DATABASE_UNAVAILABLE), { error: 50301, level: 'error' }],
    [new ApiError(errors.TOKEN_INVALID, { cause: 'revoked' }),
      { error: 40102, level: 'info', reason: 'revoked' }],
    [new Error('a bug'), { error: 50001, level: 'error', err: { message: 'a bug' } }]
  ] as const).entries()) {
    const failing = t.capture(database, 'readLong', () => Promise.reject(reason))
    const response = await fetch(`${address}/plants`, { headers: { authorization } })
    t.equal(response.status, 200)
    await t.rejects(response.text(), { message: 'terminated' })
    failing.restore()
    const series = await scrapeUntil(cut, (count) => count === index + 1, metricsUrl)
    t.equal(series[`plant_store_errors_total{error="${line.error}"}`], 1)
    t.match(log.map((text) => JSON.parse(text)).find(({ error }) => error === line.error), {
      ...line,
      status: 200,
      aborted: 'service',
      user: 'alice',
      tokenId: String,
      reqId: response.headers.get('x-request-id')
    })
  }
})

t.test('concurrent probes share one statement, and a blocked event loop does no harm', async (t) => {
  let probes = 0
  const readiness = createReadiness(async () => { probes++ }, { stopping: false })
  t.strictSame(await Promise.all([readiness(), readiness(), readiness()]), [undefined, undefined, undefined])
  t.equal(probes, 1)
  // One table: the service sends the next statement of a probe only after the block.
  const probing = createReadiness(() => database.probe(['plants']), { stopping: false })()
  await setImmediate()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1000)
  t.equal(await probing, undefined, 'the response arrived while the event loop was blocked')
})

t.test('the reason why the service is not ready has the code of the database', async (t) => {
  const reason = await createReadiness(() => database.probe(['missing']), { stopping: false })()
  t.match(reason?.error.cause, { code: '42P01' })
})

t.test('readiness needs each table and a running service, and the log has each change', async (t) => {
  /** Waits for two responses with this status. Returns the log lines. */
  const linesAt = async (status: number) => {
    await untilReadiness(status)
    await untilReadiness(status)
    return log.splice(0).map((line) => JSON.parse(line))
  }
  await linesAt(200)
  for (const table of tableNames) {
    await sql(url, `alter table ${table} rename to elsewhere`)
    const [notReady, ...further] = await linesAt(503)
    const message = new RegExp(`relation "${table}" does not exist|no response within`)
    t.match(notReady, { level: 'warn', msg: 'not ready', err: { message } })
    t.strictSame(further, [])
    await sql(url, `alter table elsewhere rename to ${table}`)
    t.match((await linesAt(200))[0], { level: 'info', msg: 'ready again' })
  }
  Object.assign(lifecycle, { starting: true })
  t.match((await app.inject('/readyz')).json(), { error: 50301 })
  Object.assign(lifecycle, { stopping: true })
  t.match((await app.inject('/readyz')).json(), { error: 50303 })
})
