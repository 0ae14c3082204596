import { setTimeout as delay } from 'node:timers/promises'
import { round } from '../../support/table.ts'
import { openSession, sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { createClient } from './client.ts'
import type { Postgres } from './postgres.ts'
import { openProxy, type Proxy } from './proxy.ts'
import type { Report } from './report.ts'

interface Fault {
  title: string
  begin: (proxy: Proxy) => unknown
  /** Resolves once the fault affects the service. */
  noticed: (proxy: Proxy, service: Program) => Promise<unknown>
  /** Runs before the proxy forwards new connections again. */
  end?: (proxy: Proxy) => unknown
}

/** Starts the service while its database is unusable. The service must be ready once the database works. */
export async function starts (scope: Scope, postgres: Postgres): Promise<Report> {
  const operator = await openSession(scope, postgres.url)
  const faults: Fault[] = [
    {
      title: 'rejects connections',
      begin: (proxy) => proxy.set('closed'),
      noticed: (_proxy, service) => service.logged('the database is not ready')
    },
    {
      title: 'accepts connections and never responds',
      begin: (proxy) => proxy.set('silent'),
      async noticed (proxy) {
        while (proxy.connections().most === 0) await delay(10)
      }
    },
    {
      title: 'stops responding during the migrations',
      begin: () => operator.query('begin; lock table migrations in access exclusive mode'),
      async noticed () {
        const waiting = () => sql(postgres.url, 'select from pg_locks where not granted')
        while ((await waiting()).length === 0) await delay(10)
      },
      async end (proxy) {
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
    const service = await unmeasured.serve(scope, { DATABASE_URL: proxy.url }, 'listening')
    await noticed(proxy, service)
    const client = createClient(service.address)
    const expect = (what: string, wanted: number, found: number | null) => {
      if (found !== wanted) breaches.push(`${title}: ${what} ${found}, expected ${wanted}`)
    }
    expect('/livez', 200, (await client.get('/livez')).status)
    expect('/readyz', 503, (await client.get('/readyz')).status)
    await end?.(proxy)
    proxy.set('open')
    const since = performance.now()
    await service.logged('ready')
    rows.push([title, round(performance.now() - since)])
    expect('/readyz after the log says ready:', 200, (await client.get('/readyz')).status)
    client.close()
    service.child.kill('SIGINT')
    expect('exit code', 0, (await service.exited)[0])
  }
  const head = ['the database', 'ready after its return, ms']
  return { title: 'Start before the database', head, rows, breaches, misses: [] }
}
