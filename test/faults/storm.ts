import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../support/database.ts'
import { unmeasured, type Scope } from '../support/program.ts'
import { createCaller } from './caller.ts'
import { openLedger } from './ledger.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { createRandom } from './random.ts'
import { spread, type Report } from './report.ts'

const { serve } = unmeasured

const users = ['storm-ada', 'storm-bo', 'storm-cy']
const workersPerUser = 8
const plantsPerWorker = 20

/**
 * PostgreSQL and the service are each killed so many times while users create
 * and delete plants; every row is then compared with what they were told.
 */
export async function storm (scope: Scope, postgres: Postgres, { seed, kills }: { seed: number, kills: number }): Promise<Report> {
  const random = createRandom(seed)
  const tokens = await createUsers(postgres.url, users)
  const environment = { DATABASE_URL: postgres.url }
  let service = await serve(scope, environment)
  const { address } = service
  const ledger = openLedger()
  const events = new EventEmitter()
  const over = new AbortController()

  async function work (owner: string, token: string, worker: number): Promise<void> {
    const caller = createCaller(address, token)
    for (let round = 0; !over.signal.aborted; round++) {
      const id = worker * plantsPerWorker + random.below(plantsPerWorker)
      const name = `${id} in round ${round}`
      const isCreate = random.chance(0.6)
      const answer = await (isCreate ? caller.create({ id, name }) : caller.delete(id))
      if (isCreate) ledger.created(owner, id, name, answer)
      else ledger.deleted(owner, id, answer)
      if (answer.status === 200 || answer.status === 204) events.emit('acknowledged')
      // Without an answer a caller takes a breath.
      if (answer.status === 0 || answer.status === 503) await delay(50)
    }
    caller.close()
  }

  async function acknowledged (further: number): Promise<void> {
    const { counts } = ledger
    const goal = counts.created + counts.deleted + further
    while (counts.created + counts.deleted < goal) await once(events, 'acknowledged')
  }

  const faults = {
    'the service': async () => {
      service.child.kill('SIGKILL')
      await service.exited
      const since = performance.now()
      service = await serve(scope, { ...environment, PORT: new URL(address).port }, 'listening')
      return since
    },
    'PostgreSQL, all processes': async () => {
      await postgres.kill()
      return postgres.start()
    },
    'PostgreSQL, its first process': async () => {
      await postgres.killPostmaster()
      return postgres.start()
    },
    'PostgreSQL, one backend': () => postgres.killBackend()
  }
  const [ofService, ...ofDatabase] = Object.keys(faults) as Array<keyof typeof faults>
  const recoveries = new Map(Object.keys(faults).map((name) => [name, [] as number[]]))

  const workers = users.flatMap((user, index) => Array.from({ length: workersPerUser },
    (_, worker) => work(user, tokens[index] as string, worker)))
  const plan = random.shuffled(Array.from({ length: kills }, (_, index) =>
    [ofService, ofDatabase[index % ofDatabase.length]] as Array<keyof typeof faults>).flat())
  for (const name of plan) {
    await acknowledged(50 + random.below(500))
    const since = await faults[name]()
    await acknowledged(1)
    recoveries.get(name)?.push(performance.now() - since)
  }
  await acknowledged(500)
  over.abort()
  await Promise.all(workers)
  const rows = await sql(postgres.url, 'select owner, id::int, name from plants where owner = any($1)', [users])
  ledger.audit(rows as Array<{ owner: string, id: number, name: string }>)

  const { created, deleted, refused, unknown, unsent } = ledger.counts
  return {
    title: `SIGKILL under a storm of writes by ${users.length} users`,
    head: ['killed', 'times', 'from its start to the first acknowledged write, ms'],
    rows: [...recoveries].map(([name, times]) => [name, times.length, spread(times)]),
    notes: [`Acknowledged: ${created} creates and ${deleted} deletes. Refused: ${refused}. Unknown: ${unknown}. Not sent, for want of a connection: ${unsent}. Lost or come back: ${ledger.breaches.length}.`],
    breaches: ledger.breaches,
    misses: []
  }
}
