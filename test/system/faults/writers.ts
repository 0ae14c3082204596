// Users who create, delete and list their plants as fast as they are answered, while something is done to the service.
import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { createCaller, type Answer } from './caller.ts'
import { openLedger } from './ledger.ts'
import { createUsers } from './postgres.ts'
import type { Random } from './random.ts'

const users = ['storm-ada', 'storm-bo', 'storm-cy']
const workersPerUser = 8
// Few enough that workers meet at the same plant, and that a list is one page.
const plantsPerUser = 160

/** `addresses`: where the service answers, one for each worker in turn. */
export async function startWriters (databaseUrl: string, addresses: string[], random: Random) {
  const tokens = await createUsers(databaseUrl, users)
  const ledger = openLedger()
  const events = new EventEmitter()
  const over = new AbortController()

  async function work (owner: string, caller: ReturnType<typeof createCaller>, worker: number): Promise<void> {
    for (let round = 0; !over.signal.aborted; round++) {
      const id = random.below(plantsPerUser)
      const answer = await act(owner, caller, id, `${id} by ${worker} in round ${round}`)
      if (answer.status === 200 || answer.status === 204) events.emit('answered')
      // Without an answer a caller takes a breath.
      if (answer.status === 0 || answer.status === 503) await delay(50)
    }
    caller.close()
  }

  async function act (owner: string, caller: ReturnType<typeof createCaller>, id: number, name: string): Promise<Answer> {
    if (random.chance(0.1)) {
      const answer = await caller.list()
      ledger.listed(owner, answer)
      return answer
    }
    if (random.chance(0.6)) {
      const answer = await caller.create({ id, name })
      ledger.created(owner, id, name, answer)
      return answer
    }
    const answer = await caller.delete(id)
    ledger.deleted(owner, id, answer)
    return answer
  }

  const acknowledgedSoFar = () => ledger.counts.created + ledger.counts.deleted
  const workers = users.flatMap((user, index) => Array.from({ length: workersPerUser }, (_, worker) => {
    const address = addresses[worker % addresses.length] as string
    return work(user, createCaller(address, tokens[index]), worker)
  }))

  return {
    ledger,

    /** Resolves once so many more writes are acknowledged. */
    async acknowledged (further: number): Promise<void> {
      const goal = acknowledgedSoFar() + further
      while (acknowledgedSoFar() < goal) await once(events, 'answered')
    },

    /** Compares everything with the rows there are in the end; the ways in which that can't be. */
    async stop (url = databaseUrl): Promise<string[]> {
      over.abort()
      await Promise.all(workers)
      const rows = await sql(url, 'select owner, id::int, name from plants where owner = any($1)', [users])
      ledger.audit(rows as Array<{ owner: string, id: number, name: string }>)
      return ledger.breaches()
    }
  }
}
