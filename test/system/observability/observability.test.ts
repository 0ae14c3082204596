// Tests the files of deploy/observability with a real Prometheus: npm run test:observability
import { readFile } from 'node:fs/promises'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createClient } from '../faults/client.ts'
import { createUsers, startPostgres } from '../faults/postgres.ts'
import { openProxy } from '../faults/proxy.ts'
import { unmeasured } from '../../support/program.ts'
import { findPrometheus, promtool, startPrometheus } from './prometheus.ts'

const programs = await findPrometheus()
if (programs === undefined) {
  t.comment('SKIPPED: there is no prometheus, and Debian\'s package of that name cannot be downloaded')
  process.exit(process.env.CI === undefined ? 0 : 1)
}

const postgres = await startPostgres(t)
const [token = ''] = await createUsers(postgres.url, ['alice'])
const proxy = await openProxy(t, postgres.url)
const limits = { MAX_QUEUED: '20', STATEMENT_TIMEOUT: '500ms', TOKEN_CACHE_TTL: '4s' }
const service = await unmeasured.serve(t, { DATABASE_URL: proxy.url, METRICS_PORT: '0', ...limits })
const metrics = String(service.log.find(({ msg }) => msg === 'metrics')?.url)
const alice = createClient(service.address, token)
t.teardown(alice.close)
const list = () => alice.list('?limit=1')
const create = () => alice.create({ id: 2, name: 'Monstera' })

t.test('promtool accepts the metrics and the rules, and each alert fires only when it should', async (t) => {
  await t.resolves(promtool(programs, ['check', 'rules', 'alerts.yml']))
  await t.resolves(promtool(programs, ['test', 'rules', 'alerts.test.yml']))
  await t.resolves(promtool(programs, ['check', 'metrics'], await (await fetch(metrics)).text()))
})

t.test('every panel of the dashboard has data after one request of each kind', async (t) => {
  const prometheus = await startPrometheus(t, programs, metrics)
  await alice.create({ id: 1, name: 'Monstera' })
  await alice.list()
  await alice.delete(1)
  const { panels } = JSON.parse(await readFile('deploy/observability/grafana/plant-store.json', 'utf8'))
  for (const { title, targets } of panels) {
    for (const { expr } of targets) {
      const query = expr.replaceAll('$__rate_interval', '5s').replaceAll('$instance', '.*')
      await until(async () => (await prometheus.query(query)).length > 0, `${title}: ${expr}`)
      t.pass(title)
    }
  }
})

/** During a fault, each of `loops` sends its request again and again. */
const faults = [
  {
    title: 'a database that is stopped',
    begin: () => { proxy.set('closed'); proxy.cut() },
    end: () => proxy.set('open'),
    alerts: ['PlantStoreNotReady', 'PlantStoreErrorBudgetBurnsFast'],
    loops: [list]
  },
  {
    title: 'a database that is frozen',
    begin: postgres.freeze,
    end: postgres.thaw,
    alerts: ['PlantStoreNotReady', 'PlantStoreErrorBudgetBurnsFast', 'PlantStoreConnectionsUnresponsive'],
    loops: [list, list, list, list, create, create, create, create]
  },
  {
    title: 'more work than the database can do',
    begin: () => proxy.slow(0, 20_000),
    end: () => proxy.slow(0),
    alerts: ['PlantStoreShedding', 'PlantStoreErrorBudgetBurnsFast'],
    // More than fit into two batches of 32 lists and the queue. Otherwise the service would reject nothing.
    loops: Array.from({ length: 200 }, () => list)
  }
]

for (const { title, begin, end, alerts, loops } of faults) {
  t.test(`${title} fires the expected alerts only, and they clear`, async (t) => {
    // Start a new Prometheus for each fault. A shared Prometheus would still count errors of earlier faults.
    const prometheus = await startPrometheus(t, programs, metrics)
    await until(async () => (await prometheus.query('plant_store_unready')).length > 0, 'the first scrape')
    await until(async () => (await prometheus.firing()).length === 0, 'no alert before the fault')
    // Before the fault, make the service cache the token and open connections. Otherwise, no request would
    // execute a statement during the fault, and no statement would time out.
    for (const request of new Set(loops)) await request()
    const seen = new Set<string>()
    const over = new AbortController()
    t.teardown(async () => {
      over.abort()
      await end()
    })
    const work = loops.map(async (request) => {
      // After the first create, a create gets 400.
      while (!over.signal.aborted) if (![200, 400].includes((await request()).status)) await delay(20)
    })
    await begin()
    await until(async () => {
      for (const alert of await prometheus.firing()) seen.add(alert)
      return alerts.every((alert) => seen.has(alert))
    }, alerts.join(', '), seen)
    await end()
    await until(async () => (await list()).status === 200, 'the service responds again')
    over.abort()
    await Promise.all(work)
    t.strictSame([...seen].toSorted(), alerts.toSorted())
    // Send requests, because the alerts clear only after requests succeed.
    const calm = setInterval(list, 100)
    t.teardown(() => clearInterval(calm))
    await until(async () => (await prometheus.firing()).length === 0, 'the alerts clear')
  })
}

async function until (holds: () => Promise<boolean>, what: string, seen = new Set<string>()): Promise<void> {
  for (const end = Date.now() + 120_000; !await holds();) {
    if (Date.now() > end) throw new Error(`not in time: ${what}, seen ${[...seen].join(', ')}`)
    await delay(200)
  }
}
