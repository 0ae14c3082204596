import { appendFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import { round as rounded } from '../../support/table.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { describe, errorNumber } from './client.ts'
import { readEffects, recordEffects, type Effect } from './effects.ts'
import { createUsers, makeServer, runServer, type Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import { summary, type Report } from './report.ts'
import { named, runRound, type Instance, type Round, type Sent } from './revocation-round.ts'

/** With the TTL and the timeout of the last instance, a revoked token has effects for longest. */
const instanceSettings = [
  { ttlMs: 0, statementTimeoutMs: 6000, batch: 500 },
  { ttlMs: 4000, statementTimeoutMs: 3000, batch: 500 },
  // Without batches, many statements wait on the same connection.
  { ttlMs: 4000, statementTimeoutMs: 6000, batch: 1 }
]
const [connectMs, graceMs] = [3000, 1000]
const [count, atOnce] = [200, 34]
const maxQueued = 200
/** A round takes at least this long. */
const spreadMs = 20_000

/** Erases users while their requests wait for locks, in queues and for slow statements. */
export async function revocations (scope: Scope, _postgres: Postgres, seed: number): Promise<Report> {
  const { url, dataDir, command } = await makeServer(scope)
  await appendFile(join(dataDir, 'postgresql.auto.conf'),
    'track_commit_timestamp = on\nmax_connections = 500\n')
  await runServer(scope, command)
  await recordEffects(url)
  const instances = await Promise.all(instanceSettings.map(async ({ ttlMs, statementTimeoutMs, batch }) => {
    const name = `TTL ${ttlMs} ms, timeout ${statementTimeoutMs} ms, batches of ${batch}`
    const { address } = await unmeasured.serve(scope, {
      DATABASE_URL: named(url, name),
      TOKEN_CACHE_TTL: `${ttlMs}ms`,
      STATEMENT_TIMEOUT: `${statementTimeoutMs}ms`,
      WRITE_BATCH: String(batch),
      MAX_QUEUED: String(maxQueued)
    })
    return { name, address, lastEffectMs: Math.max(ttlMs, 1000) + connectMs + statementTimeoutMs + graceMs }
  }))
  const users = Array.from({ length: count }, (_, index) => `revoked-${index}`)
  const tokens = await createUsers(url, users)
  const rounds: Round[] = []
  const next = users.entries()
  await Promise.all(Array.from({ length: atOnce }, async (_, lane) => {
    // If all erasures started at once, they would take all processor time.
    await delay(lane * spreadMs / atOnce)
    for (const [index, user] of next) {
      const random = createRandom(seed + index)
      rounds.push(await runRound(url, instances, user, tokens[index] as string, random))
    }
  }))
  return report(instances, rounds, await readEffects(url))
}

/** An effect of a request after the revocation of its token. */
interface LateEffect { user: string, instance: Instance, kind: string, lateMs: number }

function report (instances: Instance[], rounds: Round[], effects: Effect[]): Report {
  const late = findLateEffects(instances, rounds, effects)
  const rows = [...Map.groupBy(late, ({ kind }) => kind)].map(([kind, ofKind]) => {
    const timesOf = (one: Instance) =>
      ofKind.filter(({ instance }) => instance === one).map(({ lateMs }) => lateMs)
    return [kind, ...instances.map((instance) => rounded(Math.max(0, ...timesOf(instance))))]
  })
  const tooLateOf = (isResponse: boolean) => late
    .filter(({ kind, instance, lateMs }) =>
      kind.endsWith('response') === isResponse && lateMs > instance.lastEffectMs)
    .map(({ user, instance, kind, lateMs }) =>
      `${kind} of ${user}, ${instance.name}, ${rounded(lateMs)} ms after the revocation`)
  const withEffects = new Set(late.map(({ user }) => user)).size
  const failed = rounds.filter(({ erasure: { code, stdout }, left }) =>
    code !== 0 || !stdout.includes('Left: 0 plants and 0 tokens') || left.some((count) => count !== 0))
  return {
    title: 'Revocations',
    head: ['last effect after the revocation, ms', ...instances.map(({ name }) => name)],
    rows: [...rows, ['documented', ...instances.map(({ lastEffectMs }) => lastEffectMs)]],
    notes: [`An effect came after the revocation in ${withEffects} of ${rounds.length} rounds.`],
    breaches: [
      ...withEffects === 0 ? ['no effect came after a revocation, so the scenario tested nothing'] : [],
      ...summary('effects came too late', tooLateOf(false)),
      ...summary('erasures failed or left something', failed.map(({ user, erasure, left }) =>
        `${user}: ${JSON.stringify(erasure)}, left at once and later: ${left}`)),
      ...summary('wrong responses', findWrongResponses(rounds, effects))
    ],
    misses: summary('responses came too late', tooLateOf(true))
  }
}

function findLateEffects (instances: Instance[], rounds: Round[], effects: Effect[]): LateEffect[] {
  const revoked = revocationTimes(effects)
  const markers = new Map(effects.filter(({ kind, session }) => kind === 'create' && session === 'operator')
    .map(({ user, name, at }) => [`${user} ${name}`, at]))
  const late = (user: string, instance: Instance, kind: string, at: number) =>
    ({ user, instance, kind, lateMs: at - (revoked.get(user) ?? NaN) })
  const ofDatabase = effects.flatMap(({ user, kind, session, at }) => {
    const instance = instances.find(({ name }) => name === session)
    return instance === undefined ? [] : [late(user, instance, `${kind}, commit`, at)]
  })
  const ofResponses = rounds.flatMap(({ user, sent }) => sent.filter(isSuccess).flatMap((one) => {
    const { instance, kind, response, at } = one
    const success = late(user, instance, `${kind}, response`, at)
    if (kind !== 'list') return [success]
    const seen = (JSON.parse(response.body) as Array<{ name: string }>)
      .map(({ name }) => markers.get(`${user} ${name}`) ?? -Infinity)
    return [success, late(user, instance, 'list, newest plant', Math.max(-Infinity, ...seen))]
  }))
  return [...ofDatabase, ...ofResponses].filter(({ lateMs }) => lateMs > 0)
}

const isSuccess = ({ response: { status } }: Sent) => status === 200 || status === 204

/** Finds failures, and responses that contradict the effects or the time of the revocation. */
function findWrongResponses (rounds: Round[], effects: Effect[]): string[] {
  const created = new Set(effects.filter(({ kind }) => kind === 'create').map(({ name }) => name))
  const revoked = revocationTimes(effects)
  return rounds.flatMap(({ user, sent }) => sent.flatMap(({ kind, name = '', response, at }) => {
    const { status } = response
    const hasChangedNothing = [400, 401].includes(status) || errorNumber(response) === 50302
    const isWrong = ![200, 204, 400, 401, 404, 503].includes(status) ||
      (status === 401 && at < (revoked.get(user) ?? 0)) ||
      (kind === 'create' && (created.has(name) ? hasChangedNothing : status === 200))
    return isWrong ? [`${kind} ${name} ${describe(response)}, stored: ${created.has(name)}`] : []
  }))
}

const revocationTimes = (effects: Effect[]) =>
  new Map(effects.filter(({ kind }) => kind === 'revoke').map(({ user, at }) => [user, at]))
