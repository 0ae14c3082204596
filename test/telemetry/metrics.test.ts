import { once } from 'node:events'
import { connect } from 'node:net'
import t from 'tap'
import manifest from '../../package.json' with { type: 'json' }
import { createToken } from '../../src/access/token-format.ts'
import { startApp } from '../support/app.ts'
import { createDatabase } from '../support/database.ts'
import { serve, unmeasured, type Program } from '../support/program.ts'
import { migrations } from '../support/migrations.ts'

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
  const series = await scrape(url)
  return isNew(series) ? series : scrapeUntil(url, isNew)
}

t.test('metrics count requests, errors, tokens and statements', async (t) => {
  const { app, as, listen, observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  await listen()
  const alice = await as('alice')
  const before = await scrape(metrics?.url)
  for (const series of ['http_request_duration_seconds_count{method="GET",route="/plants",status="200"}',
    'http_request_duration_seconds_count{method="POST",route="/plants",status="503"}',
    'plant_store_errors_total{error="50302"}', 'plant_store_errors_total{error="40402"}',
    'plant_store_overload_refusals_total{kind="createPlant"}',
    'plant_store_overload_refusals_total{kind="token"}',
    'plant_store_credentials_refused_total{reason="revoked"}', 'plant_store_unready{reason="database"}',
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
  const after = await scrapeUntil(metrics?.url, isNew)
  t.match(after, {
    'http_request_duration_seconds_count{method="POST",route="/plants",status="200"}': 1,
    'http_request_duration_seconds_count{method="POST",route="/plants",status="400"}': 1,
    'http_request_duration_seconds_count{method="GET",route="/plants",status="200"}': 1,
    'http_request_duration_seconds_count{method="GET",route="/plants",status="401"}': 2,
    'http_request_duration_seconds_count{method="DELETE",route="/plants/:id",status="204"}': 1,
    'http_request_duration_seconds_count{method="any",route="none",status="404"}': 1,
    'plant_store_errors_total{error="40014"}': 1,
    'plant_store_credentials_refused_total{reason="missing"}': 1,
    'plant_store_credentials_refused_total{reason="malformed"}': 1,
    'plant_store_token_cache_requests_total{result="miss"}': 1,
    'plant_store_token_cache_requests_total{result="hit"}': 3,
    'plant_store_batch_size_sum{batch="create"}': 2,
    'plant_store_batch_size_sum{batch="delete"}': 1,
    'plant_store_statement_duration_seconds_count{statement="tokens-by-hash"}': 1,
    'plant_store_statements_failed_total{statement="plant-insert"}': 0,
    'plant_store_statements_pending{kind="read"}': 0,
    http_requests_in_flight: 0
  })
  t.notMatch(Object.keys(after).join('\n'), /xxx|alice|plant_x/)
  t.ok(after.process_resident_memory_bytes as number > 1e6)
})

t.test('the metrics port serves one path', async (t) => {
  const { app, observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  t.equal((await app.inject('/metrics')).statusCode, 404)
  const url = metrics?.url as string
  t.equal((await fetch(new URL('/', url))).status, 404)
  t.equal((await fetch(new URL('/plants', url))).status, 404)
  t.equal((await fetch(url, { method: 'POST' })).status, 404)
})

t.test('shed requests are counted by their queue', async (t) => {
  const { app, as, observers: [metrics] } = await startApp(t,
    { METRICS_PORT: '0', MAX_QUEUED: '1', WRITE_BATCH: '1' })
  const alice = await as('alice')
  await alice.list()
  await Promise.all(Array.from({ length: 20 }, (_, id) => alice.create({ id, name: 'Monstera' })))
  await Promise.all(Array.from({ length: 20 }, () =>
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } })))
  const after = await scrape(metrics?.url)
  t.ok(after['plant_store_overload_refusals_total{kind="createPlant"}'] as number > 0)
  t.ok(after['plant_store_overload_refusals_total{kind="token"}'] as number > 0)
})

const urlOf = ({ log }: Program) => String(log.find(({ msg }) => msg === 'metrics')?.url)

t.test('metrics are available before the service is ready and show why it is not', async (t) => {
  const service = await serve(t, { DATABASE_URL: 'postgres://127.0.0.1:1/none', METRICS_PORT: '0' },
    'the database is not ready')
  t.match(await scrape(urlOf(service)), {
    'plant_store_unready{reason="starting"}': 1,
    'plant_store_unready{reason="database"}': 0
  })
  service.child.kill('SIGTERM')
  await service.logged('stopping')
  await scrapeUntil(urlOf(service), (series) => series['plant_store_unready{reason="stopping"}'] === 1)
  service.child.kill('SIGTERM')
  await service.exited
})

t.test('the start fails with one line when the metrics port is taken', async (t) => {
  const url = await createDatabase(t)
  const { port } = new URL(urlOf(await unmeasured.serve(t, { DATABASE_URL: url, METRICS_PORT: '0' })))
  await t.rejects(serve(t, { DATABASE_URL: url, METRICS_PORT: port }),
    { message: `metrics cannot listen on 127.0.0.1, port ${port}` })
})

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

t.test('a thousand pipelined scrapes get one response', async (t) => {
  const { observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  const { closed } = connectTo(metrics?.url as string, request.repeat(1700))
  t.equal(countResponses(await closed), 1)
})

t.test('simultaneous scrapes are rendered once', async (t) => {
  const { observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  const clients = Array.from({ length: 10 }, () => connectTo(metrics?.url as string, request))
  const received = await Promise.all(clients.map(({ closed }) => closed))
  t.strictSame(received.map(countResponses), Array(10).fill(1))
  t.equal(new Set(received.join().match(/^process_cpu_seconds_total .*/gm)).size, 1)
})

t.test('the metrics port accepts at most fifty connections', async (t) => {
  const { observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  const clients = Array.from({ length: 60 }, () => connectTo(metrics?.url as string, ''))
  t.teardown(() => { for (const { socket } of clients) socket.destroy() })
  const closed: number[] = []
  await new Promise<void>((resolve) => {
    for (const [index, client] of clients.entries()) {
      client.closed.then(() => { if (closed.push(index) === 10) resolve() })
    }
  })
  t.strictSame(closed.toSorted(), [50, 51, 52, 53, 54, 55, 56, 57, 58, 59])
})

t.test('the metrics port closes unresponsive, slow and idle connections', async (t) => {
  const { observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  const clients = ['', request.slice(0, 20), request].map((text) => connectTo(metrics?.url as string, text))
  const received = await Promise.all(clients.map(({ closed }) => closed))
  t.strictSame(received.map(countResponses), [0, 0, 1])
})

t.test('the service runs and stops while clients of the metrics port read nothing', async (t) => {
  const url = await createDatabase(t)
  const service = await unmeasured.serve(t, { DATABASE_URL: url, METRICS_PORT: '0', DRAIN_DELAY: '0' })
  const clients = Array.from({ length: 200 }, () =>
    connectTo(urlOf(service), request.repeat(100)).socket.pause())
  t.teardown(() => { for (const socket of clients) socket.destroy() })
  await Promise.all(clients.map((socket) => once(socket, 'connect')))
  t.equal((await fetch(`${service.address}/livez`)).status, 200)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
})
