// Users who create, delete and list their plants as fast as they are answered, while something is done to the service.
import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { createClient, type HttpResponse } from './client.ts'
import { openLedger } from './ledger.ts'
import { createUsers } from './postgres.ts'
import type { Random } from './random.ts'

const users = ['storm-ada', 'storm-bo', 'storm-cy']
const workersPerUser = 8
// Few enough that workers meet at the same plant, and that a list is one page.
const plantsPerUser = 160

/** `addresses`: where the service responses, one for each worker in turn. */
export async function startWriters (databaseUrl: string, addresses: string[], random: Random) {
  const tokens = await createUsers(databaseUrl, users)
  const ledger = openLedger()
  const events = new EventEmitter()
  const over = new AbortController()

  async function work (owner: string, client: ReturnType<typeof createClient>, worker: number): Promise<void> {
    for (let round = 0; !over.signal.aborted; round++) {
      const id = random.below(plantsPerUser)
      const response = await act(owner, client, id, `${id} by ${worker} in round ${round}`)
      if (response.status === 200 || response.status === 204) events.emit('answered')
      // Without an response a client takes a breath.
      if (response.status === 0 || response.status === 503) await delay(50)
    }
    client.close()
  }

  async function act (owner: string, client: ReturnType<typeof createClient>, id: number, name: string): Promise<HttpResponse> {
    if (random.chance(0.1)) {
      const response = await client.list()
      ledger.listed(owner, response)
      return response
    }
    if (random.chance(0.6)) {
      const response = await client.create({ id, name })
      ledger.created(owner, id, name, response)
      return response
    }
    const response = await client.delete(id)
    ledger.deleted(owner, id, response)
    return response
  }

  const acknowledgedSoFar = () => ledger.counts.created + ledger.counts.deleted
  const workers = users.flatMap((user, index) => Array.from({ length: workersPerUser }, (_, worker) => {
    const address = addresses[worker % addresses.length] as string
    return work(user, createClient(address, tokens[index]), worker)
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
