import { unmeasured, type Scope } from '../../support/program.ts'
import type { Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import { spread, type Report } from './report.ts'
import { startWriters } from './writers.ts'

interface StormOptions {
  seed: number
  /** How many times to kill the service. The scenario kills PostgreSQL equally often. */
  kills: number
  /** How many acknowledged writes to await after the last kill. */
  writes: number
}

/** Kills PostgreSQL and the service under load. Responses and stored rows must not contradict each other. */
export async function storm (scope: Scope, postgres: Postgres, options: StormOptions): Promise<Report> {
  const { seed, kills, writes } = options
  const random = createRandom(seed)
  const environment = { DATABASE_URL: postgres.url }
  let service = await unmeasured.serve(scope, environment)
  const { address } = service
  const { acknowledged, ledger, stop } = await startWriters(postgres.url, [address], random)

  const faults = {
    'the service': async () => {
      service.child.kill('SIGKILL')
      await service.exited
      const since = performance.now()
      service = await unmeasured.serve(scope, { ...environment, PORT: new URL(address).port }, 'listening')
      return since
    },
    'PostgreSQL, all processes': async () => {
      await postgres.kill()
      return postgres.start()
    },
    'PostgreSQL, the postmaster': async () => {
      await postgres.killPostmaster()
      return postgres.start()
    },
    'PostgreSQL, one backend': () => postgres.killBackend()
  }
  const [ofService, ...ofDatabase] = Object.keys(faults) as Array<keyof typeof faults>
  const recoveries = new Map(Object.keys(faults).map((name) => [name, [] as number[]]))

  const plan = random.shuffled(Array.from({ length: kills }, (_, index) =>
    [ofService, ofDatabase[index % ofDatabase.length]] as Array<keyof typeof faults>).flat())
  for (const name of plan) {
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
