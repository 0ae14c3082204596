// Tests the metrics, and the readiness that they and /readyz show.
import { once } from 'node:events'
import { connect } from 'node:net'
import { setImmediate, setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import manifest from '../../package.json' with { type: 'json' }
import { createToken } from '../../src/access/token-format.ts'
import { ownedTables } from '../../src/commands/users.ts'
import { readConfig } from '../../src/config.ts'
import { ApiError, catalogue, errors, type ErrorDefinition } from '../../src/errors.ts'
import { createReadiness, type Readiness } from '../../src/telemetry/health.ts'
import { openMetrics } from '../../src/telemetry/metrics.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { migrations } from '../support/migrations.ts'
import { exchange } from '../support/raw.ts'

type Series = Record<string, number>

async function scrape (url: string | undefined): Promise<Series> {
  const response = await fetch(url as string)
  t.match(response.headers.get('content-type'), /^text\/plain; version=0\.0\.4/)
  const lines = (await response.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return Object.fromEntries(lines.map((line) => {
    const end = line.lastIndexOf(' ')
    return [line.slice(0, end), Number(line.slice(end))]
  }))
}

/** Scrapes until `isNew` accepts the values. The service updates the values at most once a second. */
async function scrapeUntil (url: string | undefined, isNew: (series: Series) => boolean): Promise<Series> {
  let series
  while (!isNew(series = await scrape(url))) await delay(50)
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

const { app, as, database, lifecycle, log, observers: [metrics], untilReadiness, url } =
  await startApp(t, { METRICS_PORT: '0', MAX_QUEUED: '1', WRITE_BATCH: '1' })
const metricsUrl = metrics?.url as string
await app.ready()
// The metrics port closes these connections after some seconds. Open the connections early to save time.
const silent = ['', request.slice(0, 20)].map((text) => connectTo(metricsUrl, text))
await Promise.all(silent.map(({ socket }) => once(socket, 'connect')))

t.test('metrics count requests, errors, tokens and statements', async (t) => {
  const alice = await as('alice')
  // On a busy machine a probe of the database may time out.
  const isReady = (series: Series) => series['plant_store_unready{reason="database"}'] === 0
  const before = await scrapeUntil(metricsUrl, isReady)
  for (const series of ['http_request_duration_seconds_count{method="GET",route="/plants",status="200"}',
    'http_request_duration_seconds_count{method="POST",route="/plants",status="503"}',
    'plant_store_errors_total{error="50302"}', 'plant_store_errors_total{error="40402"}',
    'plant_store_overload_refusals_total{kind="createPlant"}',
    'plant_store_overload_refusals_total{kind="token"}',
    'plant_store_credentials_refused_total{reason="revoked"}',
    'plant_store_database_connections_total{event="timed_out"}']) {
    t.equal(before[series], 0, series)
  }
  t.equal(before[`plant_store_build_info{version="${manifest.version}",schema="${migrations.at(-1)}"}`], 1)

  await alice.create({ id: 1, name: 'Monstera' })
  await alice.create({ id: 1, name: 'Monstera' })
  await alice.list()
  await alice.delete(1)
  await app.inject('/plants')
  await app.inject({ url: '/plants', headers: { authorization: 'Bearer plant_x' } })
  await app.inject(`/nowhere/${'x'.repeat(50)}`)

  const isNew = (series: Series) => series['plant_store_errors_total{error="40401"}'] === 1
  const after = await scrapeUntil(metricsUrl, isNew)
  t.match(after, {
    'http_request_duration_seconds_count{method="POST",route="/plants",status="200"}': 1,
    'http_request_duration_seconds_count{method="POST",route="/plants",status="400"}': 1,
    'http_request_duration_seconds_count{method="GET",route="/plants",status="401"}': 2,
    'http_request_duration_seconds_count{method="DELETE",route="/plants/:id",status="204"}': 1,
    'http_request_duration_seconds_count{method="any",route="none",status="404"}': 1,
    'plant_store_errors_total{error="40014"}': 1,
    'plant_store_credentials_refused_total{reason="missing"}': 1,
    'plant_store_credentials_refused_total{reason="malformed"}': 1,
    'plant_store_token_cache_requests_total{result="miss"}': 1,
    'plant_store_token_cache_requests_total{result="hit"}': 3,
    'plant_store_batch_size_sum{batch="create"}': 2,
    'plant_store_statement_duration_seconds_count{statement="tokens-by-hash"}': 1,
    'plant_store_statements_failed_total{statement="plant-insert"}': 0,
    'plant_store_statements_pending{kind="read"}': 0,
    http_requests_in_flight: 0
  })
  t.notMatch(Object.keys(after).join('\n'), /xxx|alice|plant_x/)
  t.ok(after.process_resident_memory_bytes as number > 1e6)

  await Promise.all(Array.from({ length: 20 }, (_, id) => alice.create({ id, name: 'Monstera' })))
  await Promise.all(Array.from({ length: 20 }, () =>
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } })))
  await scrapeUntil(metricsUrl, (series) => ['createPlant', 'token'].every((kind) =>
    series[`plant_store_overload_refusals_total{kind="${kind}"}`] as number > 0))
})

t.test('the metrics port serves one path and one response a connection, rendered once', async (t) => {
  t.equal((await app.inject('/metrics')).statusCode, 404)
  for (const path of ['/', '/plants']) t.equal((await fetch(new URL(path, metricsUrl))).status, 404)
  t.equal((await fetch(metricsUrl, { method: 'POST' })).status, 404)
  t.equal(countResponses(await connectTo(metricsUrl, request.repeat(1700)).closed), 1)
  const clients = Array.from({ length: 10 }, () => connectTo(metricsUrl, request))
  const received = await Promise.all(clients.map(({ closed }) => closed))
  t.strictSame(received.map(countResponses), Array(10).fill(1))
  t.equal(new Set(received.join().match(/^process_cpu_seconds_total .*/gm)).size, 1)
})

t.test('the metrics port closes unresponsive and slow connections', async (t) => {
  const received = await Promise.all(silent.map(({ closed }) => closed))
  t.strictSame(received, ['', ''])
})

t.test('the metrics port accepts fifty connections, and closes those that read nothing', async (t) => {
  const { url, close } = await openMetrics(readConfig({}), 0, { version: '', schema: '' })
  const clients = Array.from({ length: 60 }, () => connectTo(String(url), ''))
  const rejected: number[] = []
  await new Promise<void>((resolve) => {
    for (const [index, client] of clients.entries()) {
      client.closed.then(() => { if (rejected.push(index) === 10) resolve() })
    }
  })
  t.strictSame(rejected.toSorted(), [50, 51, 52, 53, 54, 55, 56, 57, 58, 59])
  for (const { socket } of clients.slice(0, 50)) socket.pause().write(request.repeat(100))
  await close()
  for (const { socket } of clients) socket.destroy()
  await t.rejects(openMetrics(readConfig({}), Number(new URL(metricsUrl).port), { version: '', schema: '' }),
    { message: `metrics cannot listen on 127.0.0.1, port ${new URL(metricsUrl).port}` })
})

t.test('a scrape shows why the service is not ready, and gets 500 when its collector fails', async (t) => {
  const other = await startApp(t, { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' })
  const { close, instrument, url } = await openMetrics(readConfig({}), 0, { version: '', schema: '' })
  t.teardown(close)
  let readiness: Readiness = async () => { throw new Error('readiness is unknown') }
  instrument(other.app, other.database, () => readiness())
  const failed = await fetch(String(url))
  t.strictSame([failed.status, await failed.text()], [500, 'Error: readiness is unknown\n'])
  readiness = async () => ({ name: 'starting', error: new ApiError(errors.DATABASE_UNAVAILABLE) })
  t.match(await scrape(url),
    { 'plant_store_unready{reason="starting"}': 1, 'plant_store_unready{reason="database"}': 0 })
})

t.test('each error that a client receives is counted once, also below Fastify', async (t) => {
  const { as, listen, observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' }, async (guarded) => {
    guarded.get<{ Params: { number: number } }>('/errors/:number', ({ params: { number } }) => {
      throw new ApiError(catalogue.get(Number(number)) as ErrorDefinition)
    })
  })
  const address = await listen()
  const { authorization } = await as('alice')
  const host = 'Host: x\r\n'
  // These requests reach no route, because Node's parser, Fastify's router or a check rejects them.
  const rejected: Record<string, number> = {
    'garbage\r\n\r\n': 40001,
    'GET /livez HTTP/1.1\r\n\r\n': 40003,
    [`GET /errors/%zz HTTP/1.1\r\n${host}\r\n`]: 40002,
    [`GET /nowhere HTTP/1.1\r\n${host}\r\n`]: 40401,
    [`CONNECT x:1 HTTP/1.1\r\n${host}\r\n`]: 40501,
    [`GET /errors/${'1'.repeat(1001)} HTTP/1.1\r\n${host}\r\n`]: 41401,
    [`GET /livez HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`]: 43101,
    [`XYZ /livez HTTP/1.1\r\n${host}\r\n`]: 50101
  }
  const received: string[] = []
  for (const [request, number] of Object.entries(rejected)) {
    const [response] = await exchange(address, [request], { halfClose: true })
    received.push(JSON.parse(response?.body as string).error)
    t.equal(received.at(-1), number, request.slice(0, 30))
  }
  for (const number of catalogue.keys()) {
    const response = await fetch(`${address}/errors/${number}`, { headers: { authorization } })
    received.push((await response.json() as { error: string }).error)
    t.equal(received.at(-1), number)
  }
  const series = await scrape(metrics?.url)
  for (const number of catalogue.keys()) {
    const count = received.filter((error) => Number(error) === number).length
    t.equal(series[`plant_store_errors_total{error="${number}"}`], count, `${number}`)
  }
})

t.test('readiness needs each table, and the log has a line for each change', async (t) => {
  const twice = async (status: number) => {
    await untilReadiness(status)
    await untilReadiness(status)
  }
  const lines = () => log.splice(0).map((line) => JSON.parse(line))
  await twice(200)
  lines()
  for (const table of ['tokens', ...ownedTables]) {
    await sql(url, `alter table ${table} rename to elsewhere`)
    await twice(503)
    const [notReady, ...further] = lines()
    const message = new RegExp(`relation "${table}" does not exist|no response within`)
    t.match(notReady, { level: 'warn', msg: 'not ready', err: { message } })
    t.strictSame(further, [])
    await sql(url, `alter table elsewhere rename to ${table}`)
    await twice(200)
    t.match(lines()[0], { level: 'info', msg: 'ready again' })
  }
})

t.test('a probe succeeds if its response arrived while the event loop was blocked', async (t) => {
  const probing = createReadiness(database, { stopping: false })()
  await setImmediate()
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 3000)
  t.equal(await probing, undefined)
})

t.test('concurrent probes share one statement, and a starting service is not ready', async (t) => {
  let probes = 0
  const probe = async () => { probes++ }
  const readiness = createReadiness({ ...database, probe }, { stopping: false })
  t.strictSame(await Promise.all([readiness(), readiness(), readiness()]), [undefined, undefined, undefined])
  t.equal(probes, 1)
  Object.assign(lifecycle, { starting: true })
  t.match((await app.inject('/readyz')).json(), { error: 50301 })
  Object.assign(lifecycle, { stopping: true })
  t.match((await app.inject('/readyz')).json(), { error: 50303 })
})
