import { setTimeout as delay } from 'node:timers/promises'
import { round } from '../../support/table.ts'
import { openSession, sql, waitingForLocks } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { createClient } from './client.ts'
import type { Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import type { Report } from './report.ts'

/** Starts the service while its database is unusable. The service must be ready once the database works. */
export async function starts (scope: Scope, postgres: Postgres): Promise<Report> {
  const operator = await openSession(scope, postgres.url)
  const proxy = await openProxy(scope, postgres.url)
  // `noticed` resolves once the fault affects the service. `end` runs before the proxy forwards connections.
  const faults = [
    {
      title: 'rejects connections',
      begin: () => proxy.set('closed'),
      noticed: (service: Program) => service.logged('the database is not ready')
    },
    {
      title: 'accepts connections and never responds',
      begin: () => proxy.set('silent'),
      noticed: async () => { while (proxy.connections().now === 0) await delay(10) }
    },
    {
      title: 'stops responding during the migrations',
      begin: () => operator.query('begin; lock table migrations in access exclusive mode'),
      async noticed () {
        while ((await sql(postgres.url, waitingForLocks)).length === 0) await delay(10)
      },
      async end () {
        proxy.silence()
        await operator.query('commit')
      }
    }
  ]
  const rows: Report['rows'] = []
  const breaches: string[] = []
  for (const { title, begin, noticed, end } of faults) {
    await begin()
    const service = await unmeasured.serve(scope, { DATABASE_URL: proxy.url }, 'listening')
    await noticed(service)
    const client = createClient(service.address)
    const responses = [await client.get('/livez'), await client.get('/readyz')]
    await end?.()
    proxy.set('open')
    const since = performance.now()
    await service.logged('ready')
    rows.push([title, round(performance.now() - since)])
    responses.push(await client.get('/readyz'))
    client.close()
    service.child.kill('SIGINT')
    const found = [...responses.map(({ status }) => status), (await service.exited)[0]].join()
    if (found !== '200,503,200,0') {
      breaches.push(`${title}: /livez, /readyz, /readyz after the log says ready, exit code: ${found}`)
    }
  }
  const head = ['the database', 'ready after its return, ms']
  return { title: 'Start before the database', head, rows, breaches, misses: [] }
}
