// Tests the files of deploy/observability with a real Prometheus: npm run test:observability
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createClient } from '../faults/client.ts'
import { createUsers, startPostgres } from '../faults/postgres.ts'
import { openProxy } from '../faults/proxy.ts'
import { unmeasured } from '../../support/program.ts'
import { filledIn, findPrometheus, promtool, readPanels, startPrometheus } from './prometheus.ts'

const programs = await findPrometheus()
if (programs === undefined) {
  t.comment('SKIPPED: there is no prometheus, and Debian\'s package of that name cannot be downloaded')
  process.exit(process.env.CI === undefined ? 0 : 1)
}

const postgres = await startPostgres(t)
const [token = ''] = await createUsers(postgres.url, ['alice'])
const proxy = await openProxy(t, postgres.url)
const service = await unmeasured.serve(t, {
  DATABASE_URL: proxy.url,
  METRICS_PORT: '0',
  MAX_QUEUED: '20',
  STATEMENT_TIMEOUT: '500ms',
  TOKEN_CACHE_TTL: '4s'
})
const metrics = String(service.log.find(({ msg }) => msg === 'metrics')?.url)
const alice = createClient(service.address, token)
t.teardown(alice.close)

t.test('promtool accepts the rules, and each alert fires only when it should', async (t) => {
  await t.resolves(promtool(programs, ['check', 'rules', 'alerts.yml']))
  await t.resolves(promtool(programs, ['test', 'rules', 'alerts.test.yml']))
})

t.test('promtool accepts the names of the metrics', async (t) => {
  await t.resolves(promtool(programs, ['check', 'metrics'], await (await fetch(metrics)).text()))
})

t.test('every panel of the dashboard has data after one request of each kind', async (t) => {
  const prometheus = await startPrometheus(t, programs, metrics)
  await alice.create({ id: 1, name: 'Monstera' })
  await alice.list()
  await alice.delete(1)
  for (const { title, targets } of await readPanels()) {
    for (const { expr } of targets) {
      const hasData = async () => (await prometheus.query(filledIn(expr))).length > 0
      await until(hasData, `${title}: ${expr}`)
      t.pass(title)
    }
  }
})

interface Fault {
  title: string
  begin: () => unknown
  end: () => unknown
  alerts: string[]
  clients: number
  /** The clients list plants. If true, they also create plants, on more database connections. */
  areWriting?: boolean
}

const faults: Fault[] = [
  {
    title: 'a database that is stopped',
    begin: () => { proxy.set('closed'); proxy.cut() },
    end: () => proxy.set('open'),
    alerts: ['PlantStoreNotReady', 'PlantStoreErrorBudgetBurnsFast'],
    clients: 1
  },
  {
    title: 'a database that is frozen',
    begin: postgres.freeze,
    end: postgres.thaw,
    alerts: ['PlantStoreNotReady', 'PlantStoreErrorBudgetBurnsFast', 'PlantStoreConnectionsUnresponsive'],
    clients: 4,
    areWriting: true
  },
  {
    title: 'more work than the database can do',
    begin: () => proxy.slow(0, 20_000),
    end: () => proxy.slow(0),
    alerts: ['PlantStoreShedding', 'PlantStoreErrorBudgetBurnsFast'],
    // More than fit into two batches of 32 lists and the queue. Otherwise the service would reject nothing.
    clients: 200
  }
]

for (const { title, begin, end, alerts, clients, areWriting = false } of faults) {
  t.test(`${title} fires the expected alerts only, and they clear`, async (t) => {
    // Start a new Prometheus for each fault. A shared Prometheus would still count errors of earlier faults.
    const prometheus = await startPrometheus(t, programs, metrics)
    const isScraped = async () => (await prometheus.query('plant_store_unready')).length > 0
    await until(isScraped, 'the first scrape')
    await until(async () => (await prometheus.firing()).size === 0, 'no alert before the fault')
    // Before the fault, make the service cache the token and open connections. Otherwise, no request would
    // execute a statement during the fault, and no statement would time out.
    await alice.list('?limit=1')
    if (areWriting) await alice.create({ id: 2, name: 'Monstera' })
    const seen = new Set<string>()
    const over = new AbortController()
    t.teardown(async () => {
      over.abort()
      await end()
    })
    const work = Array.from({ length: clients }, async () => {
      while (!over.signal.aborted) {
        const [{ status }] = await Promise.all([
          alice.list('?limit=1'),
          areWriting && alice.create({ id: 2, name: 'Monstera' })
        ])
        if (status !== 200) await delay(20)
      }
    })
    await begin()
    await until(async () => {
      for (const alert of await prometheus.firing()) seen.add(alert)
      return alerts.every((alert) => seen.has(alert))
    }, alerts.join(', '), seen)
    await end()
    await until(async () => (await alice.list('?limit=1')).status === 200, 'the service responds again')
    over.abort()
    await Promise.all(work)
    t.strictSame([...seen].toSorted(), alerts.toSorted())
    // Send requests, because the alerts clear only after requests succeed.
    const calm = setInterval(() => { alice.list('?limit=1') }, 100)
    t.teardown(() => clearInterval(calm))
    await until(async () => (await prometheus.firing()).size === 0, 'the alerts clear')
  })
}

async function until (holds: () => Promise<boolean>, what: string, seen = new Set<string>()): Promise<void> {
  for (const end = Date.now() + 120_000; !await holds();) {
    if (Date.now() > end) throw new Error(`not in time: ${what}, seen ${[...seen].join(', ')}`)
    await delay(200)
  }
}
