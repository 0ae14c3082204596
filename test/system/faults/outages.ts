import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, describe, errorNumber, startLoad, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { round } from '../../support/table.ts'
import { summary, type Report } from './report.ts'

export interface OutageOptions {
  lastsMs: number
  /** How long to watch the service after each fault. */
  watchMs: number
  /** How many requests of each kind (create, list, delete) to send a second. */
  perSecond: number
  statementTimeoutMs: number
}

const longestWaitMs = 10_000
// docs/reliability.md promises a recovery within this time.
const longestRecoveryMs = 1000
/** How long after the beginning of a fault /readyz may still respond 200. */
const noticedMs = 1000

interface Fault {
  title: string
  begin: () => unknown
  end: () => unknown
  /** Whether every request that needs the database fails during the fault. */
  isTotal: boolean
}

const role = 'outages'

/** Causes database faults while a client sends requests. The service must recover without a restart. */
export async function outages (scope: Scope, postgres: Postgres, options: OutageOptions): Promise<Report> {
  const { lastsMs, watchMs, perSecond, statementTimeoutMs } = options
  const [token = ''] = await createUsers(postgres.url, [role])
  // This role must not be a superuser: PostgreSQL ignores `connection limit` for superusers.
  await sql(postgres.url, `create role ${role} login password '${role}';
    grant all on plants, tokens to ${role}`)
  const terminate = () => sql(postgres.url,
    `select pg_terminate_backend(pid) from pg_stat_activity where usename = '${role}'`)
  const url = new URL(postgres.url)
  url.username = url.password = role
  const proxy = await openProxy(scope, url.href)
  const service = await unmeasured.serve(scope, {
    DATABASE_URL: proxy.url,
    MIGRATE: 'off',
    STATEMENT_TIMEOUT: `${statementTimeoutMs}ms`
  })
  const client = createClient(service.address, token)
  scope.teardown(client.close)

  let terminating: NodeJS.Timeout
  let nextId = 1
  const faults: Fault[] = [
    { title: 'stopped', isTotal: true, begin: postgres.kill, end: postgres.start },
    { title: 'frozen', isTotal: true, begin: postgres.freeze, end: postgres.thaw },
    {
      title: 'connections cut and rejected',
      isTotal: true,
      begin: () => { proxy.set('closed'); proxy.cut() },
      end: () => proxy.set('open')
    },
    {
      title: 'all connections unresponsive, new ones too',
      isTotal: true,
      begin: () => { proxy.set('silent'); proxy.silence() },
      end: () => proxy.set('open')
    },
    { title: 'open connections unresponsive', isTotal: false, begin: proxy.silence, end: () => {} },
    { title: 'responses 2 s late', isTotal: false, begin: () => proxy.slow(1000), end: () => proxy.slow(0) },
    {
      title: 'too many connections',
      isTotal: true,
      begin: async () => {
        await sql(postgres.url, `alter role ${role} connection limit 0`)
        await terminate()
      },
      end: () => sql(postgres.url, `alter role ${role} connection limit -1`)
    },
    {
      title: 'pg_terminate_backend ten times a second',
      isTotal: false,
      begin: () => { terminating = setInterval(terminate, 100) },
      end: () => { clearInterval(terminating) }
    }
  ]

  const rows: Report['rows'] = []
  const breaches: string[] = []
  const misses: string[] = []
  for (const { title, begin, end, isTotal } of faults) {
    const load = startLoad(client, perSecond, () => [
      client.create({ id: nextId++, name: 'Monstera' }), client.list('?limit=20'), client.delete(-1)
    ])
    await delay(500)
    await begin()
    const began = performance.now()
    await delay(lastsMs)
    // On a busy machine the first 503 may come late. So extend a total fault until a request fails.
    const maxRounds = isTotal ? 10 : 0
    for (let longer = 0; longer < maxRounds && !load.hasFailed(); longer++) await delay(lastsMs)
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
    if (service.child.exitCode !== null) broken.push(`the service ended with ${service.child.exitCode}`)
    breaches.push(...broken.map((text) => `${title}: ${text}`))

    const late = [...responses, ...readies].filter((response) => response.startedAt > ended &&
      (!isNormal(response) || response.ms > longestRecoveryMs))
    const recovery = Math.max(0, ...late.map(({ startedAt }) => startedAt - ended))
    const wait = Math.max(...responses.map(({ ms }) => ms))
    if (recovery > longestRecoveryMs) {
      misses.push(`${title}: requests failed or were slow ${round(recovery)} ms after the fault`)
    }
    if (wait > longestWaitMs) misses.push(`${title}: a response took ${round(wait)} ms`)
    rows.push([title, responses.length, failed.length, round(wait), round(recovery)])
  }

  return {
    title: 'Outages of the database',
    head: ['', 'requests', '503', 'slowest response, ms', 'recovered after, ms'],
    rows,
    notes: [`Each fault lasted ${lastsMs / 1000} s under ${3 * perSecond} requests a second, ` +
      `STATEMENT_TIMEOUT=${statementTimeoutMs}ms.`],
    breaches,
    misses
  }
}

/** 404 is normal: the load deletes plant -1, which no user has. */
const isNormal = ({ status }: HttpResponse) => status === 200 || status === 404

const isProperError = (response: HttpResponse) =>
  response.status === 503 && Number(response.headers['retry-after']) > 0 &&
  [50301, 50302, 50304].includes(errorNumber(response) as number)
