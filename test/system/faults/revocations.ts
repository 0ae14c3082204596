import { appendFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { round as rounded } from '../../support/table.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { describe, errorNumber, type HttpResponse } from './client.ts'
import { readEffects, recordEffects, type Effect } from './effects.ts'
import { createUsers, makeServer, runServer, type Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import { summary, type Report } from './report.ts'
import { named, runRound, type Instance, type Round } from './revocation-round.ts'

/** With the TTL and the timeout of the last instance, a revoked token has effects for longest. */
const instanceSettings = [
  { ttlMs: 0, timeoutMs: 6000, batch: 500 },
  { ttlMs: 4000, timeoutMs: 3000, batch: 500 },
  // Without batches, many statements wait on the same connection.
  { ttlMs: 4000, timeoutMs: 6000, batch: 1 }
]
/** docs/reliability.md, "After a revocation", lists these limits. */
const [queueMs, connectMs, resultMs] = [5000, 8000, 1000]
const [count, atOnce] = [200, 34]
/** A round takes at least this long. */
const spreadMs = 20_000

/** Erases users while their requests wait for locks, in queues and for slow statements. */
export async function revocations (scope: Scope, _postgres: Postgres, seed: number): Promise<Report> {
  const { url, dataDir, command } = await makeServer(scope)
  await appendFile(join(dataDir, 'postgresql.auto.conf'),
    'track_commit_timestamp = on\nmax_connections = 500\n')
  await runServer(scope, command)
  await recordEffects(url)
  const instances = await Promise.all(instanceSettings.map(async ({ ttlMs, timeoutMs, batch }) => {
    const name = `TTL ${ttlMs} ms, timeout ${timeoutMs} ms, batches of ${batch}`
    const { address } = await unmeasured.serve(scope, {
      DATABASE_URL: named(url, name),
      TOKEN_CACHE_TTL: `${ttlMs}ms`,
      STATEMENT_TIMEOUT: `${timeoutMs}ms`,
      WRITE_BATCH: String(batch),
      MAX_QUEUED: '200'
    })
    const lastEffectMs = Math.max(ttlMs, 1000) + queueMs + connectMs + timeoutMs + resultMs
    return { name, address, lastEffectMs }
  }))
  const users = Array.from({ length: count }, (_, index) => `revoked-${index}`)
  const tokens = await createUsers(url, users)
  const rounds: Round[] = []
  const next = users.entries()
  await Promise.all(Array.from({ length: atOnce }, async (_, lane) => {
    // If all erasures started at once, they would take all processor time.
    await delay(lane * spreadMs / atOnce)
    for (const [index, user] of next) {
      rounds.push(await runRound(url, instances, user, tokens[index] as string, createRandom(seed + index)))
    }
  }))
  return report(instances, rounds, await readEffects(url))
}

function report (instances: Instance[], rounds: Round[], effects: Effect[]): Report {
  const revoked = new Map(effects.filter(({ kind }) => kind === 'revoke').map(({ user, at }) => [user, at]))
  const late = findLateEffects(instances, rounds, effects, revoked)
  const rows = [...Map.groupBy(late, ({ kind }) => kind)].map(([kind, ofKind]) => {
    const timesOf = (one: Instance) =>
      ofKind.filter(({ instance }) => instance === one).map(({ lateMs }) => lateMs)
    return [kind, ...instances.map((instance) => rounded(Math.max(0, ...timesOf(instance))))]
  })
  const tooLate = (isResponse: boolean) => late
    .filter(({ kind, instance, lateMs }) =>
      kind.endsWith('response') === isResponse && lateMs > instance.lastEffectMs)
    .map(({ user, instance, kind, lateMs }) =>
      `${kind} of ${user}, ${instance.name}, ${rounded(lateMs)} ms after the revocation`)
  const withEffects = new Set(late.map(({ user }) => user)).size
  const failed = rounds.filter(({ erasure: { code, stdout }, left }) =>
    code !== 0 || !stdout.includes('Left: 0 plants') || left.some((count) => count !== 0))
  return {
    title: 'Revocations',
    head: ['last effect after the revocation, ms', ...instances.map(({ name }) => name)],
    rows: [...rows, ['documented', ...instances.map(({ lastEffectMs }) => lastEffectMs)]],
    notes: [`An effect came after the revocation in ${withEffects} of ${rounds.length} rounds.`],
    breaches: [
      ...withEffects === 0 ? ['no effect came after a revocation, so the scenario tested nothing'] : [],
      ...summary('effects came too late', tooLate(false)),
      ...summary('erasures failed or left something', failed.map(({ user, erasure, left }) =>
        `${user}: ${JSON.stringify(erasure)}, left at once and later: ${left}`)),
      ...summary('wrong responses', findWrongResponses(rounds, effects, revoked))
    ],
    misses: summary('responses came too late', tooLate(true))
  }
}

/** The time of the whole response, in ms since 1970. */
const timeOf = ({ startedAt, ms }: HttpResponse) => performance.timeOrigin + startedAt + ms

/** Finds effects of requests after the revocation of their token. */
function findLateEffects (
  instances: Instance[], rounds: Round[], effects: Effect[], revoked: Map<string, number>
) {
  const late = (user: string, instance: Instance, kind: string, at: number) =>
    ({ user, instance, kind, lateMs: at - (revoked.get(user) ?? NaN) })
  const markers = new Map(effects.filter(({ session }) => session === 'operator')
    .map(({ user, name, at }) => [`${user} ${name}`, at]))
  const ofDatabase = instances.flatMap((instance) => effects
    .filter(({ session }) => session === instance.name)
    .map(({ user, kind, at }) => late(user, instance, `${kind}, commit`, at)))
  const ofResponses = rounds.flatMap(({ user, sent }) => sent
    .filter(({ response: { status } }) => status === 200 || status === 204)
    .flatMap(({ instance, kind, response }) => {
      const success = late(user, instance, `${kind}, response`, timeOf(response))
      if (kind !== 'list') return [success]
      const seen = (JSON.parse(response.body) as Array<{ name: string }>)
        .map(({ name }) => markers.get(`${user} ${name}`) ?? -Infinity)
      return [success, late(user, instance, 'list, newest plant', Math.max(...seen))]
    }))
  return [...ofDatabase, ...ofResponses].filter(({ lateMs }) => lateMs > 0)
}

/** Finds failures, and responses that contradict the effects or the time of the revocation. */
function findWrongResponses (rounds: Round[], effects: Effect[], revoked: Map<string, number>): string[] {
  const created = new Set(effects.filter(({ kind }) => kind === 'create').map(({ name }) => name))
  return rounds.flatMap(({ user, sent }) => sent.flatMap(({ kind, name, response }) => {
    const { status } = response
    const hasChangedNothing = [400, 401].includes(status) || errorNumber(response) === 50302
    const isWrong = ![200, 204, 400, 401, 404, 503].includes(status) ||
      (status === 401 && timeOf(response) < (revoked.get(user) ?? 0)) ||
      (kind === 'create' && (created.has(name) ? hasChangedNothing : status === 200))
    return isWrong ? [`${kind} ${name} ${describe(response)}, stored: ${created.has(name)}`] : []
  }))
}
