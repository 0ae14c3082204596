import t from 'tap'
import { createToken } from '../../src/access/token-format.ts'
import { startApp } from '../support/app.ts'
import { createDatabase } from '../support/database.ts'
import { serve, unmeasured, type Program } from '../support/program.ts'
import { migrations } from '../support/migrations.ts'

/** The value of each series. */
async function scrape (url: string | undefined): Promise<Record<string, number>> {
  const answer = await fetch(url as string)
  t.match(answer.headers.get('content-type'), /^text\/plain; version=0\.0\.4/)
  const lines = (await answer.text()).split('\n').filter((line) => line !== '' && !line.startsWith('#'))
  return Object.fromEntries(lines.map((line) => {
    const end = line.lastIndexOf(' ')
    return [line.slice(0, end), Number(line.slice(end))]
  }))
}

t.test('metrics tell what was asked, how it ended and what it took', async (t) => {
  const { app, as, listen, observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  await listen()
  const alice = await as('alice')
  const before = await scrape(metrics?.url)
  for (const series of ['http_request_duration_seconds_count{method="GET",route="/plants",status="200"}',
    'http_request_duration_seconds_count{method="POST",route="/plants",status="503"}',
    'plant_store_errors_total{error="50302"}', 'plant_store_errors_total{error="40402"}',
    'plant_store_overload_refusals_total{kind="createPlant"}', 'plant_store_overload_refusals_total{kind="token"}',
    'plant_store_credentials_refused_total{reason="revoked"}', 'plant_store_unready{reason="database"}',
    'plant_store_database_connections_total{event="timed_out"}']) {
    t.equal(before[series], 0, series)
  }
  t.equal(before[`plant_store_build_info{version="1.0.0",schema="${migrations.at(-1)}"}`], 1)

  await alice.create({ id: 1, name: 'Monstera' })
  await alice.create({ id: 1, name: 'Monstera' })
  await alice.list()
  await alice.delete(1)
  await app.inject('/plants')
  await app.inject({ url: '/plants', headers: { authorization: 'Bearer plant_x' } })
  await app.inject(`/nowhere/${'x'.repeat(50)}`)

  const after = await scrape(metrics?.url)
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
    'plant_store_statements_waiting{kind="read"}': 0,
    http_requests_in_flight: 0
  })
  t.notMatch(Object.keys(after).join('\n'), /xxx|alice|plant_x/)
  t.ok(after.process_resident_memory_bytes as number > 1e6)
})

t.test('metrics are at one path of one port, and not on that of the service', async (t) => {
  const { app, observers: [metrics] } = await startApp(t, { METRICS_PORT: '0' })
  t.equal((await app.inject('/metrics')).statusCode, 404)
  const url = metrics?.url as string
  t.equal((await fetch(new URL('/', url))).status, 404)
  t.equal((await fetch(new URL('/plants', url))).status, 404)
  t.equal((await fetch(url, { method: 'POST' })).status, 404)
})

t.test('what is refused for overload is counted by what it waited for', async (t) => {
  const { app, as, observers: [metrics] } = await startApp(t, { METRICS_PORT: '0', MAX_QUEUED: '1', WRITE_BATCH: '1' })
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

t.test('metrics are there before the service is ready, and say why it is not', async (t) => {
  const service = await serve(t, { DATABASE_URL: 'postgres://127.0.0.1:1/none', METRICS_PORT: '0' }, 'the database is not ready')
  t.match(await scrape(urlOf(service)), {
    'plant_store_unready{reason="starting"}': 1,
    'plant_store_unready{reason="database"}': 0
  })
  service.child.kill('SIGTERM')
  await service.logged('stopping')
  t.match(await scrape(urlOf(service)), { 'plant_store_unready{reason="stopping"}': 1 })
  service.child.kill('SIGTERM')
  await service.exited
})

t.test('a taken port for metrics is told in one line, and everything is closed', async (t) => {
  const url = await createDatabase(t)
  const { port } = new URL(urlOf(await unmeasured.serve(t, { DATABASE_URL: url, METRICS_PORT: '0' })))
  await t.rejects(serve(t, { DATABASE_URL: url, METRICS_PORT: port }),
    { message: `metrics cannot listen on 127.0.0.1, port ${port}` })
})
