import { setTimeout as delay } from 'node:timers/promises'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, describe, errorNumber, type HttpResponse } from './client.ts'
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
  const row = (title: string, all: HttpResponse[]) =>
    [title, round(all.length / measureMs * 1000), round(quantile(all.map(({ ms }) => ms), 0.99))]
  const breaches = rejected.length === 0 ? ['no request was rejected, so the scenario tested nothing'] : []
  for (const [what, [first, ...others]] of Object.entries({ unexpected, blind })) {
    if (first) breaches.push(`${what}: ${1 + others.length} responses, such as ${describe(first)}`)
  }
  return {
    title: 'Overload',
    head: ['', 'a second', '99th percentile, ms'],
    rows: [
      row(`responses to ${patientClients} clients that await each response`, peak),
      row(`responses to ${overload} times as many requests`, responses),
      row('accepted', taken),
      row('rejected with 50302', rejected),
      row('/livez and /readyz', probes)
    ],
    totals: { requests: peak.length + responses.length + probes.length },
    breaches,
    misses: share < minShare ? [`accepted only ${round(share * 100)} % of the peak rate`] : []
  }
}

const accepted = (responses: HttpResponse[], began: number, measureMs: number) =>
  responses.filter(({ status, startedAt, ms }) => status === 200 && startedAt + ms < began + measureMs)
