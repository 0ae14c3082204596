import { setTimeout as delay } from 'node:timers/promises'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, describe, errorNumber, startLoad, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { latency, summary, type Report } from './report.ts'

/** The proxy limits each direction of each database connection to this rate. */
const bytesPerSecond = 25_000
const measureMs = 8000
const [times, minShare] = [10, 0.8]
const [patientClients, maxQueued] = [32, 64]

/** A client sends ten times as many requests a second as the database can serve. */
export async function overload (scope: Scope, postgres: Postgres): Promise<Report> {
  const [token = ''] = await createUsers(postgres.url, ['busy'])
  await sql(postgres.url, `insert into plants (owner, id, name)
    select 'busy', id, 'Monstera deliciosa' from generate_series(1, 20) id`)
  const proxy = await openProxy(scope, postgres.url)
  const service = await unmeasured.serve(scope, { DATABASE_URL: proxy.url, MAX_QUEUED: String(maxQueued) })
  const client = createClient(service.address, token)
  scope.teardown(client.close)
  await client.list()
  proxy.slow(0, bytesPerSecond)
  let began = performance.now()
  const peak: HttpResponse[] = []
  await Promise.all(Array.from({ length: patientClients }, async () => {
    while (performance.now() < began + measureMs) peak.push(await client.list())
  }))
  const sustainable = perSecond(accepted(peak, began))

  began = performance.now()
  const load = startLoad(client, times * sustainable, () => [client.list()])
  await delay(measureMs)
  const { responses, lives, readies } = await load.stop()
  const probes = [...lives, ...readies]
  const taken = accepted(responses, began)
  const rejected = responses.filter((response) => errorNumber(response) === 50302)
  const others = responses.filter((response) => response.status !== 200 && !rejected.includes(response))
  const share = perSecond(taken) / sustainable
  const row = (title: string, all: HttpResponse[]) =>
    [title, round(perSecond(all)), round(latency(all, 0.99))]
  return {
    title: 'Overload',
    head: ['', 'a second', '99th percentile, ms'],
    rows: [
      row(`responses to ${patientClients} clients that await each response`, peak),
      row(`responses to ${times} times as many requests`, responses),
      row('accepted', taken),
      row('rejected with 50302', rejected),
      row('/livez and /readyz', probes)
    ],
    breaches: [
      ...rejected.length === 0 ? ['no request was rejected, so the scenario tested nothing'] : [],
      ...summary('responses were unexpected', others.map(describe)),
      ...summary('probes failed', probes.filter(({ status }) => status !== 200).map(describe))
    ],
    misses: share < minShare ? [`accepted only ${round(share * 100)} % of the peak rate`] : []
  }
}

const perSecond = ({ length }: HttpResponse[]) => length / measureMs * 1000

const accepted = (responses: HttpResponse[], began: number) =>
  responses.filter(({ status, startedAt, ms }) => status === 200 && startedAt + ms < began + measureMs)
