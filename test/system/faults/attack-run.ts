import { fork, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import { settings } from '../../../src/config.ts'
import { sql } from '../../support/database.ts'
import { memoryMiB } from '../../support/processes.ts'
import { acceptingJwts, startKeyServer } from '../../support/identity-provider.ts'
import { asShipped, program, startedBy, type Program, type Scope } from '../../support/program.ts'
import { attacks, type Attack } from './attack-table.ts'
import { createClient, describe, type Client, type HttpResponse } from './client.ts'
import type { Counts, Target } from './flood.ts'
import { observe } from './others.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy } from './proxy.ts'
import { attackerAddresses, maxAttackConnections, otherAddress, startShippedProxy } from './shipped-proxy.ts'

export interface AttackOptions {
  /** Multiplies the attack's numbers of connections and users. 1 runs the full attack. */
  share: number
  /** How long to watch the service before the attack, and again during the attack. */
  watchMs: number
  /** How long to wait between the end of the attack and the last measurement of memory. */
  restMs: number
  /** Sends the attack through this proxy: nginx, haproxy, or a path to one of them. */
  behind?: string | undefined
}

export const maxShutdownMs = 9000
const bodyLimit = Number(settings.BODY_LIMIT.initial)

// Start the service with the malloc setting of the Dockerfile. The setting saves memory.
const dockerfile = readFileSync(join(import.meta.dirname, '../../../Dockerfile'), 'utf8')
const malloc = /MALLOC_\w+=\d+/.exec(dockerfile)?.slice(0, 1) ?? []
const probe = `NODE_OPTIONS=--import=${join(import.meta.dirname, 'tick-probe.ts')}`
const { serve } = startedBy(['env', ...asShipped, ...malloc, probe, ...program])

function plantsFor ({ plants }: Attack, users: string[]): string[] {
  if (plants === undefined) return []
  const attackers = users.map((user) => `'${user}'`).join()
  return [`insert into plants (owner, id, name, tag)
    select attacker, plant.* from unnest(array[${attackers}]) attacker
    cross join (${plants}) as plant (id, name, tag)`, 'checkpoint']
}

/** Starts an attack in a new process. After the message 'stop' the process sends its `Counts` and ends. */
async function startAttack (scope: Scope, attack: Attack, target: Target): Promise<ChildProcess> {
  // `asShipped` removes the test runner's module loader. With that loader the start takes four times as long.
  const options = { execPath: 'env', execArgv: [...asShipped, process.execPath] }
  const attacker = fork(join(import.meta.dirname, 'attacker.ts'), options)
  scope.teardown(() => { attacker.kill() })
  attacker.send({ index: attacks.indexOf(attack), target })
  await once(attacker, 'message')
  return attacker
}

/** Measures the service under attack. Then measures the shutdown during a second attack. */
export async function measure (
  scope: Scope, postgres: Postgres, attack: Attack, { watchMs, restMs, share, behind }: AttackOptions
) {
  const named = (name: string, count: number) =>
    Array.from({ length: Math.ceil(count) }, (_, index) => `${name} ${index}`)
  const attackers = named('mallory', share * (attack.users ?? 1))
  const others = named('other', attack.others ?? 5)
  const tokens = await createUsers(postgres.url, attackers)
  const otherTokens = await createUsers(postgres.url, others)
  const held = new pg.Client(postgres.url)
  // If the run fails, PostgreSQL ends this connection. The run should report its own error.
  held.on('error', () => {})
  await held.connect()
  const database = {
    query: (text: string) => sql(postgres.url, text),
    session: (text: string) => held.query(text)
  }
  const tickFile = join(tmpdir(), `ticks-${process.pid}-${Date.now()}`)
  const collector = await openProxy(scope, 'http://127.0.0.1:1')
  collector.set('silent')
  const observed = attack.observed && { METRICS_PORT: '0', OTEL_EXPORTER_OTLP_ENDPOINT: collector.url }
  const provider = attack.acceptsJwts ? await startKeyServer(scope) : undefined
  const service = await serve(scope, {
    DATABASE_URL: postgres.url,
    DRAIN_DELAY: '0',
    TICK_FILE: tickFile,
    ...observed,
    ...provider && acceptingJwts(provider.issuer),
    ...behind !== undefined && { TRUSTED_PROXIES: 'loopback' },
    ...attack.settings
  })
  const proxy = behind === undefined ? undefined : await startShippedProxy(scope, behind, service.address)
  const address = proxy?.url ?? service.address
  const metrics = String(service.log.find(({ msg }) => msg === 'metrics')?.url ?? '')
  const connections = Math.min(Math.ceil(attack.connections * share), proxy ? maxAttackConnections : Infinity)
  const jwt = await provider?.sign()
  const localAddresses = proxy ? attackerAddresses : []
  const target = { address, metrics, tokens, jwt, localAddresses, connections, bodyLimit }
  const clients = otherTokens.map((token, index) =>
    createClient(address, token, { localAddress: proxy && otherAddress(index) }))
  const name = 'n'.repeat(attack.otherNameLength ?? 8)
  const probed = [...new Set([service.address, address])]
  const watch = (ms: number) => observe(service, probed, clients, name, ms, tickFile)

  await watch(Math.min(watchMs, 1000))
  const alone = await watch(watchMs)
  await attack.setup?.(database)
  for (const statement of plantsFor(attack, attackers)) await database.query(statement)
  const over = new AbortController()
  const attacker = await startAttack(scope, attack, target)
  const beside = attack.beside?.(database, over.signal)
  const linesBefore = service.log.length
  const during = await watch(watchMs)
  const logLines = (service.log.length - linesBefore) / Math.max(watchMs / 1000, 1)
  attacker.send('stop')
  const [counts] = await once(attacker, 'message') as [Counts]
  over.abort()
  await beside
  await delay(restMs)
  const left = memoryMiB(service.child.pid as number)
  const faults = [...during.faults, ...await findFaults(service, clients, postgres, counts)]

  const again = await startAttack(scope, attack, target)
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
  const { code, ms: shutdownMs } = await shutDown(service)
  again.kill()
  await watched
  for (const client of clients) client.close()
  proxy?.stop()
  await held.end()
  await rm(tickFile, { force: true })
  await sql(postgres.url, 'drop table if exists large; truncate plants, tokens')
  return { alone, during, left, logLines, code, shutdownMs, counts, faults }
}

/** Returns null as `code` if the service had to be killed. */
async function shutDown ({ child, exited }: Program) {
  const since = performance.now()
  child.kill('SIGTERM')
  const killing = setTimeout(() => child.kill('SIGKILL'), 2 * maxShutdownMs)
  const [code] = await exited
  clearTimeout(killing)
  return { code, ms: performance.now() - since }
}

async function findFaults (
  service: Program, clients: Client[], postgres: Postgres, counts: Counts
): Promise<string[]> {
  const ready = await clients[0]?.get('/readyz') as HttpResponse
  const ids = Array.from({ length: 20 }, (_, id) => id + 100)
  await Promise.all(clients.flatMap((client) => ids.map((id) => client.create({ id, name: 'Monstera' }))))
  const [stored] = await sql(postgres.url, `
    select count(*)::int as plants, count(distinct xmin::text)::int as statements
    from plants where owner like 'other%' and id >= 100`)
  await Promise.all(clients.flatMap((client) => ids.map((id) => client.delete(id))))
  const closed = service.log.filter(({ msg }) => String(msg).startsWith('the database was unresponsive'))
    .reduce((sum, { replaced }) => sum + Number(replaced), 0)
  return [
    ...ready.status === 200 ? [] : [`/readyz afterwards: ${describe(ready)}`],
    ...stored?.plants === stored?.statements
      ? [`batching is off: ${stored?.plants} creates, as many statements`]
      : [],
    ...closed > 0 ? [`${closed} healthy database connections were closed`] : [],
    ...counts[500] ? [`${counts[500]} responses of 500 to the attacker`] : []
  ]
}
