import { setTimeout as delay } from 'node:timers/promises'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, errorNumber, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

export interface OverloadOptions {
  /** The proxy limits each direction of each database connection to this rate. */
  bytesPerSecond: number
  measureMs: number
}

const overload = 10
const minShare = 0.8
const patientClients = 32
const maxQueued = 64
const overloaded = 50302

/** A client sends ten times as many requests a second as the database can serve. */
export async function overloads (
  scope: Scope, postgres: Postgres, { bytesPerSecond, measureMs }: OverloadOptions
): Promise<Report> {
  const [token = ''] = await createUsers(postgres.url, ['busy'])
  await sql(postgres.url, `insert into plants (owner, id, name)
    select 'busy', id, 'Monstera deliciosa' from generate_series(1, 20) id`)
  const proxy = await openProxy(scope, postgres.url)
  const service = await serve(scope, { DATABASE_URL: proxy.url, MAX_QUEUED: String(maxQueued) })
  const client = createClient(service.address, token)
  scope.teardown(client.close)
  await client.list()
  proxy.slow(0, bytesPerSecond)

  const end = performance.now() + measureMs
  const peak: HttpResponse[] = []
  await Promise.all(Array.from({ length: patientClients }, async () => {
    while (performance.now() < end) peak.push(await client.list())
  }))
  const sustainable = accepted(peak, end - measureMs, measureMs).length / measureMs * 1000

  const responses: HttpResponse[] = []
  const probes: HttpResponse[] = []
  const pending: Array<Promise<unknown>> = []
  const collect = (into: HttpResponse[], sent: Promise<HttpResponse>) =>
    pending.push(sent.then((response) => into.push(response)))
  const began = performance.now()
  for (let sent = 0, probed = 0; performance.now() < began + measureMs;) {
    const elapsed = performance.now() - began
    for (; sent < elapsed / 1000 * overload * sustainable; sent++) collect(responses, client.list())
    for (; probed < elapsed / 100; probed++) {
      collect(probes, client.get('/livez'))
      collect(probes, client.get('/readyz'))
    }
    await delay(5)
  }
  await Promise.all(pending)

  const taken = accepted(responses, began, measureMs)
  const rejected = responses.filter((response) => errorNumber(response) === overloaded)
  const unexpected = responses.filter((response) => response.status !== 200 && !rejected.includes(response))
  const blind = probes.filter(({ status }) => status !== 200)
  const share = taken.length / measureMs * 1000 / sustainable
  const p99 = (all: HttpResponse[]) => round(quantile(all.map(({ ms }) => ms), 0.99))
  const first = ([one]: HttpResponse[]) => `${one?.status} ${one?.body}`
  return {
    title: 'Overload',
    head: ['', 'a second', '99th percentile, ms'],
    rows: [
      [`responses to ${patientClients} clients that await each response`, round(sustainable), p99(peak)],
      [`requests, ${overload} times as many`, round(responses.length / measureMs * 1000), ''],
      ['accepted', round(taken.length / measureMs * 1000), p99(taken)],
      ['rejected with 50302', round(rejected.length / measureMs * 1000), p99(rejected)],
      ['/livez and /readyz', round(probes.length / measureMs * 1000), p99(probes)]
    ],
    breaches: [
      ...unexpected.length > 0
        ? [`${unexpected.length} were neither accepted nor rejected, such as ${first(unexpected)}`]
        : [],
      ...blind.length > 0 ? [`${blind.length} probes failed, such as ${first(blind)}`] : [],
      ...rejected.length === 0 ? ['no request was rejected, so the scenario tested nothing'] : []
    ],
    misses: share < minShare ? [`accepted only ${round(share * 100)} % of the peak rate`] : []
  }
}

const accepted = (responses: HttpResponse[], began: number, measureMs: number) =>
  responses.filter(({ status, startedAt, ms }) => status === 200 && startedAt + ms < began + measureMs)
