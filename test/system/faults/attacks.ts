import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { memoryMiB } from '../../support/processes.ts'
import { acceptingJwts, startKeyServer } from '../../support/identity-provider.ts'
import { asShipped, program, startedBy, type Program, type Scope } from '../../support/program.ts'
import { round } from '../../support/table.ts'
import { attacks as all, type Attack } from './attack-table.ts'
import { createClient, describe, type Client, type HttpResponse } from './client.ts'
import type { Counts, Target } from './flood.ts'
import { observe } from './others.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { latency, summary, type Report } from './report.ts'
import { attackerAddresses, maxAttackConnections, otherAddress, startShippedProxy } from './shipped-proxy.ts'

/**
 * `share` multiplies the numbers of connections and users. The test watches the service for `watchMs` before
 * the attack, and again during the attack. Then the service may collect garbage for `restMs`. `behind` sends
 * all requests through a proxy: nginx or haproxy.
 */
interface Options { share: number, watchMs: number, restMs: number, behind?: string | undefined }

const [maxP99Ms, maxLiveMs, maxTickMs, maxLogLines] = [100, 250, 30, 100]
const [maxMemoryMiB, maxGrowthMiB, maxShutdownMs] = [400, 100, 9000]

const head = [
  'attack', 'limited by', 'writes, ms', 'lists, ms', `/livez, worst ms (${maxLiveMs})`,
  `memory before, during, after, MiB (${maxMemoryMiB}, growth ${maxGrowthMiB})`,
  `longest tick, ms (${maxTickMs})`, `log lines a second (${maxLogLines})`,
  `shutdown (0 within ${maxShutdownMs / 1000} s)`, 'responses to the attacker'
]
const notes = [`Five other users (20 beside the attack on USER_RATE) create, list and delete a plant in turn.
Times: p99 before the attack / median / p99 / worst during the attack. The bound of p99 is ${maxP99Ms} ms, or
twice the p99 before. Bold figures exceed their bound. Ticks are in ms of processor time, in steps of 4 ms;
ticks below 10 ms count as 0. Behind a proxy at most ${maxAttackConnections} connections attack, and the times
of /livez are: directly / through the proxy.`]
const titles = all.map(({ title }) => title)

/** Each of `rows` is a number of an attack, or the beginning of its title. By default all attacks run. */
export async function attacks (postgres: Postgres, options: Options, rows = titles): Promise<Report> {
  const { behind } = options
  const heading = `One attacker, and the cost to other users${behind ? `, behind ${behind}` : ''}`
  const report: Report = { title: heading, head, rows: [], notes, breaches: [], misses: [] }
  for (const row of rows) {
    const attack = all.find(({ title }) => `${title} `.startsWith(`${row} `))
    if (attack === undefined) throw new Error(`Expected rows of:\n${titles.join('\n')}`)
    const { title, limitedBy, onlyDirect } = attack
    if (behind && onlyDirect) {
      report.rows.push([title, onlyDirect])
      continue
    }
    const { alone, during, left, logLines, code, shutdownMs, counts, faults } =
      await measure(postgres, attack, options)
    const bounded = (what: string, figure: number, max: number) => {
      if (!(figure > max)) return round(figure)
      report.misses.push(`${title}: ${what} ${round(figure)}, at most ${round(max)}`)
      return `**${round(figure)}**`
    }
    const times = (kind: 'writes' | 'lists') => {
      const [before, p99] = [latency(alone[kind], 0.99), latency(during[kind], 0.99)]
      const marked = bounded(`${kind} of others, p99 ms`, p99, Math.max(maxP99Ms, 2 * before))
      const [median, worst] = [latency(during[kind], 0.5), latency(during[kind], 1)]
      return [round(before), round(median), marked, round(worst)].join(' / ')
    }
    report.breaches.push(...faults.map((fault) => `${title}: ${fault}`))
    report.rows.push([
      title, limitedBy, times('writes'), times('lists'),
      during.live.map((live) => bounded('/livez, worst ms', latency(live, 1), maxLiveMs)).join(' / '),
      [round(alone.memory), bounded('memory, MiB', during.memory, maxMemoryMiB),
        bounded('memory afterwards, MiB', left, alone.memory + maxGrowthMiB)].join(', '),
      bounded('longest tick, ms', during.tickMs, maxTickMs),
      bounded('log lines a second', logLines, maxLogLines),
      `${code ?? 'no exit code'} after ${bounded('shutdown, s', shutdownMs / 1000, maxShutdownMs / 1000)} s`,
      Object.entries(counts).map(([status, count]) => `${count} × ${status}`).join(', ')
    ])
  }
  return report
}

// Start the service with the malloc setting of the Dockerfile. The setting saves memory.
const dockerfile = readFileSync(join(import.meta.dirname, '../../../Dockerfile'), 'utf8')
const malloc = /MALLOC_\w+=\d+/.exec(dockerfile)?.slice(0, 1) ?? []
const probe = `NODE_OPTIONS=--import=${join(import.meta.dirname, 'tick-probe.ts')}`
const { serve } = startedBy(['env', ...asShipped, ...malloc, probe, ...program])

/** Starts an attack in a new process. After the message 'stop' the process sends its `Counts` and ends. */
async function startAttack (scope: Scope, attack: Attack, target: Target): Promise<ChildProcess> {
  // `asShipped` removes the test runner's module loader. With that loader the start takes four times as long.
  const options = { execPath: 'env', execArgv: [...asShipped, process.execPath] }
  const attacker = fork(join(import.meta.dirname, 'attacker.ts'), options)
  scope.teardown(() => attacker.kill())
  attacker.send({ index: all.indexOf(attack), target })
  await once(attacker, 'message')
  return attacker
}

/** Measures the service under attack. Then measures the shutdown during a second attack. */
async function measure ({ url }: Postgres, attack: Attack, options: Options) {
  const { watchMs, restMs, share, behind } = options
  await using stack = new AsyncDisposableStack()
  const scope: Scope = { teardown: (work) => stack.defer(work) }
  scope.teardown(() => sql(url, 'drop table if exists large; truncate plants, tokens'))
  const named = (name: string, count: number) =>
    Array.from({ length: Math.ceil(count) }, (_, index) => `${name} ${index}`)
  const attackers = named('mallory', share * (attack.users ?? 1))
  const tokens = await createUsers(url, attackers)
  const otherTokens = await createUsers(url, named('other', attack.others ?? 5))
  const collector = await openProxy(scope, 'http://127.0.0.1:1')
  collector.set('silent')
  const provider = attack.hasJwts ? await startKeyServer(scope) : undefined
  const service = await serve(scope, {
    DATABASE_URL: url,
    DRAIN_DELAY: '0',
    ...attack.observed && { METRICS_PORT: '0', OTEL_EXPORTER_OTLP_ENDPOINT: collector.url },
    ...provider && acceptingJwts(provider.issuer),
    ...behind && { TRUSTED_PROXIES: 'loopback' },
    ...attack.settings
  })
  const address = behind ? await startShippedProxy(scope, behind, service.address) : service.address
  const target: Target = {
    address,
    metrics: String(service.log.find(({ msg }) => msg === 'metrics')?.url ?? ''),
    tokens,
    jwt: await provider?.sign(),
    sources: behind ? attackerAddresses : [],
    connections: Math.min(Math.ceil(attack.connections * share), behind ? maxAttackConnections : Infinity)
  }
  const clients = otherTokens.map((token, index) =>
    createClient(address, token, { localAddress: behind && otherAddress(index) }))
  const name = 'n'.repeat(attack.otherNameLength ?? 8)
  const watch = (ms: number) => observe(service, [...new Set([service.address, address])], clients, name, ms)

  await watch(Math.min(watchMs, 1000))
  const alone = await watch(watchMs)
  await attack.setup?.(url, scope)
  if (attack.plants !== undefined) {
    await sql(url, `insert into plants (owner, id, name, tag)
      select attacker, plant.* from unnest($1::text[]) attacker
      cross join (${attack.plants}) as plant (id, name, tag)`, [attackers])
    await sql(url, 'checkpoint')
  }
  const over = new AbortController()
  const attacker = await startAttack(scope, attack, target)
  const beside = attack.beside?.(url, over.signal)
  // Each write has a line. The service must limit all other lines.
  const countLines = () => service.log.filter(({ msg }) => msg !== 'request completed').length
  const linesBefore = countLines()
  const during = await watch(watchMs)
  const logLines = (countLines() - linesBefore) / Math.max(watchMs / 1000, 1)
  attacker.send('stop')
  const [counts] = await once(attacker, 'message') as [Counts]
  over.abort()
  await beside
  await delay(restMs)
  const left = memoryMiB(service.child.pid as number)
  const faults = [...during.faults, ...await findFaults(service, clients, url, counts)]

  await startAttack(scope, attack, target)
  // With `stallsLog` the second attack lasts as long as the first. In a shorter time the unread log lines
  // would not fill the pipe.
  const lastsMs = attack.stallsLog ? watchMs : watchMs / 4
  const watched = watch(lastsMs)
  if (attack.stallsLog) {
    service.child.kill('SIGUSR2')
    await service.logged('SIGUSR2')
    service.child.stdout.pause()
  }
  await delay(lastsMs)
  const since = performance.now()
  service.child.kill('SIGTERM')
  const [code] = await Promise.race([service.exited, delay(2 * maxShutdownMs, [null], { ref: false })])
  const shutdownMs = performance.now() - since
  await watched
  if (code !== 0) faults.push(`shutdown: exit code ${code}`)
  return { alone, during, left, logLines, code, shutdownMs, counts, faults }
}

async function findFaults (service: Program, clients: Client[], url: string, counts: Counts) {
  const ready = await clients[0]?.get('/readyz') as HttpResponse
  const ids = Array.from({ length: 20 }, (_, id) => id + 100)
  await Promise.all(clients.flatMap((client) => ids.map((id) => client.create({ id, name: 'Monstera' }))))
  const unbatched = await sql(url, `select count(*) from plants where owner like 'other%' and id >= 100
    having count(*) = count(distinct xmin::text)`)
  const closed = service.log.filter(({ msg }) => String(msg).startsWith('the database was unresponsive'))
  return [
    ...ready.status === 200 ? [] : [`/readyz afterwards: ${describe(ready)}`],
    ...unbatched.map(({ count }) => `batching is off: ${count} creates, as many statements`),
    ...summary('times healthy database connections were closed', closed.map((line) => JSON.stringify(line))),
    ...counts[500] ? [`${counts[500]} responses of 500 to the attacker`] : []
  ]
}
