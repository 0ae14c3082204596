import { setTimeout as delay } from 'node:timers/promises'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createCaller, errorNumber, type Answer } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

export interface OverloadOptions {
  /** What one connection to the database carries. */
  bytesPerSecond: number
  measureMs: number
}

const overload = 10
const leastShare = 0.8
const patientCallers = 32
const maxQueued = 64
const overloaded = 50302

/** A database that can do so much and no more is asked for ten times as much. */
export async function overloads (scope: Scope, postgres: Postgres, { bytesPerSecond, measureMs }: OverloadOptions): Promise<Report> {
  const [token = ''] = await createUsers(postgres.url, ['busy'])
  await sql(postgres.url, 'insert into plants (owner, id, name) select \'busy\', id, \'Monstera deliciosa\' from generate_series(1, 20) id')
  const proxy = await openProxy(scope, postgres.url)
  const service = await serve(scope, { DATABASE_URL: proxy.url, MAX_QUEUED: String(maxQueued) })
  const caller = createCaller(service.address, token)
  scope.teardown(caller.close)
  await caller.list()
  proxy.slow(0, bytesPerSecond)

  const end = performance.now() + measureMs
  const peak: Answer[] = []
  await Promise.all(Array.from({ length: patientCallers }, async () => {
    while (performance.now() < end) peak.push(await caller.list())
  }))
  const sustainable = accepted(peak, end - measureMs, measureMs).length / measureMs * 1000

  const answers: Answer[] = []
  const probes: Answer[] = []
  const under = new Set<Promise<void>>()
  const collect = (into: Answer[], asked: Promise<Answer>) => {
    const kept = asked.then((answer) => {
      into.push(answer)
      under.delete(kept)
    })
    under.add(kept)
  }
  const began = performance.now()
  for (let sent = 0, probed = 0; performance.now() < began + measureMs;) {
    const elapsed = performance.now() - began
    for (; sent < elapsed / 1000 * overload * sustainable; sent++) collect(answers, caller.list())
    for (; probed < elapsed / 100; probed++) {
      collect(probes, caller.get('/livez'))
      collect(probes, caller.get('/readyz'))
    }
    await delay(5)
  }
  await Promise.all(under)

  const taken = accepted(answers, began, measureMs)
  const refused = answers.filter((answer) => errorNumber(answer) === overloaded)
  const odd = answers.filter((answer) => answer.status !== 200 && !refused.includes(answer))
  const blind = probes.filter(({ status }) => status !== 200)
  const share = taken.length / measureMs * 1000 / sustainable
  const p99 = (all: Answer[]) => round(quantile(all.map(({ ms }) => ms), 0.99))
  return {
    title: 'Ten times too much',
    head: ['', 'a second', '99th percentile, ms'],
    rows: [
      [`answered, ${patientCallers} patient callers`, round(sustainable), p99(peak)],
      [`asked for, ${overload} times as much`, round(answers.length / measureMs * 1000), ''],
      ['of these answered', round(taken.length / measureMs * 1000), p99(taken)],
      ['refused with 50302', round(refused.length / measureMs * 1000), p99(refused)],
      ['/livez and /readyz', round(probes.length / measureMs * 1000), p99(probes)]
    ],
    breaches: [
      ...odd.length > 0 ? [`${odd.length} were neither answered nor refused, such as ${odd[0]?.outcome} ${odd[0]?.status} ${odd[0]?.body}`] : [],
      ...blind.length > 0 ? [`${blind.length} probes failed, such as ${blind[0]?.status} ${blind[0]?.body}`] : [],
      ...refused.length === 0 ? ['nothing was refused, so nothing was tested'] : []
    ],
    misses: share < leastShare ? [`only ${round(share * 100)} % of the peak rate`] : []
  }
}

/** Those answered while it was measured: what comes after the end was paid for by nobody else. */
const accepted = (answers: Answer[], began: number, measureMs: number) =>
  answers.filter(({ status, startedAt, ms }) => status === 200 && startedAt + ms < began + measureMs)
