import { once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { createClient } from './client.ts'
import type { Postgres } from './postgres.ts'
import { openProxy, type Proxy } from './proxy.ts'
import type { Report } from './report.ts'

const { serve } = unmeasured

interface Fault {
  title: string
  begin: (proxy: Proxy) => unknown
  /** Resolves once the fault affects the service. */
  noticed: (proxy: Proxy, service: Program) => Promise<unknown>
  end: (proxy: Proxy) => unknown
}

/** Starts the service while its database is unusable. The service must be ready once the database works. */
export async function starts (scope: Scope, postgres: Postgres): Promise<Report> {
  const operator = new pg.Client(postgres.url)
  await operator.connect()
  scope.teardown(() => operator.end())
  const isConnected = async (proxy: Proxy) => {
    while (proxy.connections().most === 0) await delay(10)
  }
  const faults: Fault[] = [
    {
      title: 'rejects connections',
      begin: (proxy) => proxy.set('closed'),
      noticed: (_proxy, service) => service.logged('the database is not ready'),
      end: (proxy) => proxy.set('open')
    },
    {
      title: 'accepts connections and never responds',
      begin: (proxy) => proxy.set('silent'),
      noticed: isConnected,
      end: (proxy) => proxy.set('open')
    },
    {
      title: 'stops responding during the migrations',
      begin: () => operator.query('begin; lock table migrations in access exclusive mode'),
      noticed: async () => {
        const waiting = () => sql(postgres.url, 'select from pg_locks where not granted')
        while ((await waiting()).length === 0) await delay(10)
      },
      end: async (proxy) => {
        proxy.silence()
        await operator.query('commit')
      }
    }
  ]

  const rows: Report['rows'] = []
  const breaches: string[] = []
  for (const { title, begin, noticed, end } of faults) {
    const proxy = await openProxy(scope, postgres.url)
    await begin(proxy)
    const service = await serve(scope, { DATABASE_URL: proxy.url }, 'listening')
    await noticed(proxy, service)
    const client = createClient(service.address)
    const [live, ready] = await Promise.all([client.get('/livez'), client.get('/readyz')])
    if (live.status !== 200) breaches.push(`${title}: /livez ${live.status}`)
    if (ready.status !== 503) breaches.push(`${title}: /readyz ${ready.status}`)
    await end(proxy)
    const since = performance.now()
    await service.logged('ready')
    rows.push([title, round(performance.now() - since)])
    const after = await client.get('/readyz')
    if (after.status !== 200) breaches.push(`${title}: /readyz ${after.status} after the log said ready`)
    client.close()
    service.child.kill('SIGINT')
    const [code] = await once(service.child, 'exit')
    if (code !== 0) breaches.push(`${title}: exit code ${code}`)
  }
  const head = ['the database', 'ready after its return, ms']
  return { title: 'Start before the database', head, rows, breaches, misses: [] }
}
