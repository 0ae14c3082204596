import { sql } from '../../support/database.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import type { Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import { spread, type Report } from './report.ts'
import { startWriters } from './writers.ts'

/**
 * Kills the service and PostgreSQL under load, each of them `kills` times. Then awaits further `writes`.
 * Responses and stored rows must not contradict each other.
 */
export async function storm (
  scope: Scope, postgres: Postgres, { seed, kills, writes }: Record<'seed' | 'kills' | 'writes', number>
): Promise<Report> {
  const random = createRandom(seed)
  const environment = { DATABASE_URL: postgres.url }
  let service = await unmeasured.serve(scope, environment)
  const { address } = service
  const { acknowledged, ledger, stop } = await startWriters(postgres.url, [address], random)

  /** Each function resolves with the time of the new start. */
  const faults = {
    'the service': async () => {
      service.child.kill('SIGKILL')
      await service.exited
      const since = performance.now()
      service = await unmeasured.serve(scope, { ...environment, PORT: new URL(address).port }, 'listening')
      return since
    },
    'PostgreSQL, all processes': () => postgres.kill().then(postgres.start),
    'PostgreSQL, the postmaster': () => postgres.killPostmaster().then(postgres.start),
    'PostgreSQL, one backend': async () => {
      const [backend] = await sql(postgres.url,
        "select pid from pg_stat_activity where application_name = 'plant-store' limit 1")
      const ready = postgres.untilReady()
      process.kill(backend?.pid as number, 'SIGKILL')
      return ready
    }
  }
  const [ofService, ...ofDatabase] = Object.keys(faults) as Array<keyof typeof faults>
  const recoveries = new Map(Object.keys(faults).map((name) => [name, [] as number[]]))
  const plan = Array.from({ length: kills }, (_, index) => [ofService, ofDatabase[index % ofDatabase.length]])
  for (const name of random.shuffled(plan.flat() as Array<keyof typeof faults>)) {
    await acknowledged(50 + random.below(writes))
    const since = await faults[name]()
    await acknowledged(1)
    recoveries.get(name)?.push(performance.now() - since)
  }
  await acknowledged(writes)
  const breaches = await stop()

  return {
    title: 'SIGKILL under a storm of writes',
    head: ['killed', 'times', 'from the new start to the first acknowledged write, ms'],
    rows: [...recoveries].map(([name, times]) => [name, times.length, spread(times)]),
    notes: [`${counted(ledger.counts)} Plants with a history that no order explains: ${breaches.length}.`],
    breaches,
    misses: []
  }
}

export const counted = ({ created, deleted, listed, rejected, unknown, unsent }: Record<string, number>) =>
  `Acknowledged: ${created} creates and ${deleted} deletes. Lists: ${listed}. Rejected: ${rejected}. ` +
  `Outcome unknown: ${unknown}. Not sent, without a connection: ${unsent}.`
