import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { memoryMiB } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, errorNumber, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { round } from '../../support/table.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

export interface OutageOptions {
  /** How long each fault lasts. */
  lastsMs: number
  /** How long to watch after each. */
  watchMs: number
  /** Requests of each kind, sent whether or not earlier ones are answered. */
  perSecond: number
  statementTimeoutMs: number
}

/** What the page promises of every response, and of the way back. */
const longestWaitMs = 10_000
const longestRecoveryMs = 1000
/** When probes must have noticed: one may be under way when it happens. */
const noticedMs = 1000

interface Fault {
  title: string
  begin: () => unknown
  end: () => unknown
  /** Whether nothing at all can be answered while it lasts. */
  isTotal: boolean
}

const role = 'outages'

/** The database goes away in every way it can, under a steady load, and comes back to the same process. */
export async function outages (scope: Scope, postgres: Postgres, options: OutageOptions): Promise<Report> {
  const { lastsMs, watchMs, perSecond, statementTimeoutMs } = options
  const [token = ''] = await createUsers(postgres.url, [role])
  // Limits on connections don't hold for a superuser.
  await sql(postgres.url, `create role ${role} login password '${role}'; grant all on plants, tokens to ${role}`)
  const terminate = () => sql(postgres.url, `select pg_terminate_backend(pid) from pg_stat_activity where usename = '${role}'`)
  const url = new URL(postgres.url)
  url.username = url.password = role
  const proxy = await openProxy(scope, url.href)
  const service = await serve(scope, {
    DATABASE_URL: proxy.url,
    MIGRATE: 'off',
    STATEMENT_TIMEOUT: `${statementTimeoutMs}ms`
  })
  const client = createClient(service.address, token)
  scope.teardown(client.close)

  let terminating: NodeJS.Timeout
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
      title: 'connections gone silent, new ones too',
      isTotal: true,
      begin: () => { proxy.set('silent'); proxy.silence() },
      end: () => proxy.set('open')
    },
    { title: 'connections gone silent', isTotal: false, begin: proxy.silence, end: () => {} },
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
    const load = startLoad(client, perSecond)
    await delay(500)
    const before = memoryMiB(service.child.pid as number)
    proxy.forgetMost()
    await begin()
    const began = performance.now()
    await delay(lastsMs)
    // A busy machine may not have got round to a request in that time.
    const most = isTotal ? 10 : 0
    for (let longer = 0; longer < most && !load.hasFailed(); longer++) await delay(lastsMs)
    const during = memoryMiB(service.child.pid as number)
    await end()
    const ended = performance.now()
    await delay(watchMs)
    const { responses, lives, readies } = await load.stop()

    const hit = responses.filter(({ startedAt }) => startedAt > began && startedAt < ended)
    const failed = responses.filter((response) => !isNormal(response))
    const odd = failed.filter((response) => !isHonest(response))
    if (odd.length > 0) breaches.push(`${title}: ${odd.length} responses were neither normal nor a 503 with Retry-After and an Error body, such as ${describe(odd[0] as HttpResponse)}`)
    const dead = lives.filter(({ status }) => status !== 200)
    if (dead.length > 0) breaches.push(`${title}: /livez: ${describe(dead[0] as HttpResponse)}`)
    const blind = readies.filter(({ status, startedAt, ms }) => status !== 503 && startedAt > began + noticedMs && startedAt + ms < ended)
    if (isTotal && blind.length > 0) breaches.push(`${title}: /readyz: ${describe(blind[0] as HttpResponse)}`)
    if (isTotal && !hit.some(({ status }) => status === 503)) breaches.push(`${title}: nothing failed, so nothing was tested`)
    if (service.child.exitCode !== null) breaches.push(`${title}: the service ended with ${service.child.exitCode}`)

    const late = [...responses, ...readies].filter((response) => response.startedAt > ended && (!isNormal(response) || response.ms > longestRecoveryMs))
    const recovery = Math.max(0, ...late.map(({ startedAt }) => startedAt - ended))
    const wait = Math.max(...responses.map(({ ms }) => ms))
    const live = Math.max(...lives.map(({ ms }) => ms))
    if (recovery > longestRecoveryMs) misses.push(`${title}: not normal ${round(recovery)} ms after it was over`)
    if (wait > longestWaitMs) misses.push(`${title}: an response took ${round(wait)} ms`)
    rows.push([title, responses.length, failed.length, round(quantile(failed.map(({ ms }) => ms), 0.5)), round(wait), round(live),
      round(recovery), proxy.connections().most, `${round(during - before)}`])
  }

  return {
    title: 'The database away',
    head: ['', 'requests', '503', 'their median wait, ms', 'longest wait of any, ms', '/livez at most, ms', 'normal again after, ms', 'connections at most', 'memory growth, MiB'],
    rows,
    notes: [`Each fault lasted ${lastsMs / 1000} s under ${3 * perSecond} requests a second, STATEMENT_TIMEOUT=${statementTimeoutMs}ms.`],
    breaches,
    misses
  }
}

/** Every kind of request at a steady rate. */
function startLoad (client: ReturnType<typeof createClient>, perSecond: number) {
  const tickMs = 10
  const under = new Set<Promise<unknown>>()
  const responses: HttpResponse[] = []
  const lives: HttpResponse[] = []
  const readies: HttpResponse[] = []
  const collect = (into: HttpResponse[], asked: Promise<HttpResponse>) => {
    const kept = asked.then((response) => {
      into.push(response)
      under.delete(kept)
    })
    under.add(kept)
  }
  let owed = 0
  const timer = setInterval(() => {
    for (owed += perSecond * tickMs / 1000; owed >= 1; owed--) {
      collect(responses, client.create({ id: nextId++, name: 'Monstera' }))
      collect(responses, client.list('?limit=20'))
      collect(responses, client.delete(-1))
    }
  }, tickMs)
  const probes = setInterval(() => {
    collect(lives, client.get('/livez'))
    collect(readies, client.get('/readyz'))
  }, 100)
  return {
    hasFailed: () => responses.some(({ status }) => status === 503),
    async stop () {
      clearInterval(timer)
      clearInterval(probes)
      await Promise.all(under)
      return { responses, lives, readies }
    }
  }
}

let nextId = 1

/** As on any other day: nobody has plant -1. */
const isNormal = ({ status }: HttpResponse) => status === 200 || status === 404

const isHonest = (response: HttpResponse) => response.status === 503 && Number(response.headers['retry-after']) > 0 && [50301, 50302, 50304].includes(errorNumber(response) as number)

const describe = ({ outcome, status, body, ms }: HttpResponse) => `${outcome} ${status} ${body.slice(0, 200)} after ${round(ms)} ms`
