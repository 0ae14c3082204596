import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { hasEnded } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, describe, errorNumber, startLoad, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { round } from '../../support/table.ts'
import { summary, type Report } from './report.ts'

const role = 'outages'
const longestWaitMs = 10_000
// docs/reliability.md promises a recovery within this time.
const longestRecoveryMs = 1000
/** How long after the beginning of a fault /readyz may still respond 200. */
const noticedMs = 1000

type Fault = [title: string, begin: () => unknown, end: () => unknown]

/**
 * Causes database faults while a client sends `perSecond` creates, lists and deletes. Watches the service for
 * `watchMs` after each fault. The service must recover without a restart.
 */
export async function outages (
  scope: Scope, postgres: Postgres, { lastsMs, watchMs, perSecond, statementTimeoutMs }:
  Record<'lastsMs' | 'watchMs' | 'perSecond' | 'statementTimeoutMs', number>
): Promise<Report> {
  const [token = ''] = await createUsers(postgres.url, [role])
  const run = (text: string) => sql(postgres.url, text)
  // This role must not be a superuser: PostgreSQL ignores `connection limit` for superusers.
  await run(`create role ${role} login password '${role}';
    grant all on all tables in schema public to ${role}`)
  const limitConnections = (limit: number) => run(`alter role ${role} connection limit ${limit}`)
  const terminate = () =>
    run(`select pg_terminate_backend(pid) from pg_stat_activity where usename = '${role}'`)
  const url = new URL(postgres.url)
  url.username = url.password = role
  const proxy = await openProxy(scope, url.href)
  const settings = { DATABASE_URL: proxy.url, MIGRATE: 'off', STATEMENT_TIMEOUT: `${statementTimeoutMs}ms` }
  const service = await unmeasured.serve(scope, settings)
  const client = createClient(service.address, token)
  scope.teardown(client.close)

  let terminating: NodeJS.Timeout
  let nextId = 1
  const open = () => proxy.set('open')
  /** During these faults, every request that needs the database fails. */
  const total: Fault[] = [
    ['stopped', postgres.kill, postgres.start],
    ['frozen', postgres.freeze, postgres.thaw],
    ['connections cut and rejected', () => { proxy.set('closed'); proxy.cut() }, open],
    ['all connections unresponsive, new ones too', () => { proxy.set('silent'); proxy.silence() }, open],
    ['too many connections', () => limitConnections(0).then(terminate), () => limitConnections(-1)]
  ]
  const partial: Fault[] = [
    ['open connections unresponsive', proxy.silence, () => {}],
    ['responses 2 s late', () => proxy.slow(1000), () => proxy.slow(0)],
    ['pg_terminate_backend ten times a second',
      () => { terminating = setInterval(terminate, 100) }, () => { clearInterval(terminating) }]
  ]

  const report: Report = {
    title: 'Outages of the database',
    head: ['', 'requests', '503', 'slowest response, ms', 'recovered after, ms'],
    rows: [],
    notes: [`Each fault lasted ${lastsMs / 1000} s under ${3 * perSecond} requests a second, ` +
      `STATEMENT_TIMEOUT=${statementTimeoutMs}ms.`],
    breaches: [],
    misses: []
  }
  for (const fault of [...total, ...partial]) {
    const [title, begin, end] = fault
    const isTotal = total.includes(fault)
    const load = startLoad(client, perSecond, () => [
      client.create({ id: nextId++, name: 'Monstera' }), client.list('?limit=20'), client.delete(-1)
    ])
    await delay(500)
    await begin()
    const began = performance.now()
    await delay(lastsMs)
    // On a busy machine the first 503 may come late. So extend a total fault until a request fails.
    for (let left = isTotal ? 10 : 0; left > 0 && !load.hasFailed(); left--) await delay(lastsMs)
    await end()
    const ended = performance.now()
    await delay(watchMs)
    const { responses, lives, readies } = await load.stop()

    const failed = responses.filter((response) => !isNormal(response))
    const blind = readies.filter(({ status, startedAt, ms }) =>
      status !== 503 && startedAt > began + noticedMs && startedAt + ms < ended)
    const broken = [
      ...summary('responses were neither normal nor a 503 with Retry-After and an Error body',
        failed.filter((response) => !isProperError(response)).map(describe)),
      ...summary('failures of /livez', lives.filter(({ status }) => status !== 200).map(describe)),
      ...summary('responses of /readyz that overlook the fault', isTotal ? blind.map(describe) : [])
    ]
    if (isTotal && failed.length === 0) broken.push('no request failed, so this tested nothing')
    const { child } = service
    if (hasEnded(child)) broken.push(`the service ended with ${child.signalCode ?? child.exitCode}`)
    report.breaches.push(...broken.map((text) => `${title}: ${text}`))

    const late = [...responses, ...readies].filter((response) => response.startedAt > ended &&
      (!isNormal(response) || response.ms > longestRecoveryMs))
    const recovery = Math.max(0, ...late.map(({ startedAt }) => startedAt - ended))
    const wait = Math.max(...responses.map(({ ms }) => ms))
    if (recovery > longestRecoveryMs) {
      report.misses.push(`${title}: requests failed or were slow ${round(recovery)} ms after the fault`)
    }
    if (wait > longestWaitMs) report.misses.push(`${title}: a response took ${round(wait)} ms`)
    report.rows.push([title, responses.length, failed.length, round(wait), round(recovery)])
  }
  return report
}

/** 404 is normal: the load deletes plant -1, which no user has. */
const isNormal = ({ status }: HttpResponse) => status === 200 || status === 404

const isProperError = (response: HttpResponse) =>
  response.status === 503 && Number(response.headers['retry-after']) > 0 &&
  [50301, 50302, 50304].includes(errorNumber(response))
