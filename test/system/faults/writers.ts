import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { createClient, type Client, type HttpResponse } from './client.ts'
import { openLedger } from './ledger.ts'
import { createUsers } from './postgres.ts'
import type { Random } from './random.ts'

const users = ['storm-ada', 'storm-bo', 'storm-cy']
const workersPerUser = 8
// With few plants, several workers often write the same plant.
const plantsPerUser = 160

/**
 * Starts workers that create, delete and list plants. Each worker sends all requests to one address, and
 * waits `pause` milliseconds after each response.
 */
export async function startWriters (databaseUrl: string, addresses: string[], random: Random, pause = 0) {
  const tokens = await createUsers(databaseUrl, users)
  const ledger = openLedger()
  const events = new EventEmitter()
  const over = new AbortController()

  async function work (user: string, client: Client, worker: number): Promise<void> {
    for (let round = 0; !over.signal.aborted; round++) {
      const id = random.below(plantsPerUser)
      const { status } = await act(user, client, id, `${id} by ${worker} in round ${round}`)
      if (status === 200 || status === 204) events.emit('acknowledged')
      const failed = status === 0 || status === 503
      const wait = failed ? Math.max(50, pause) : pause
      if (wait > 0) await delay(wait)
    }
    client.close()
  }

  async function act (user: string, client: Client, id: number, name: string): Promise<HttpResponse> {
    if (random.chance(0.1)) {
      const response = await client.list()
      ledger.listed(user, response)
      return response
    }
    const isCreate = random.chance(0.6)
    const response = isCreate ? await client.create({ id, name }) : await client.delete(id)
    ledger.wrote(user, id, isCreate ? name : null, response)
    return response
  }

  const acknowledgedSoFar = () => ledger.counts.created + ledger.counts.deleted
  const workers = users.flatMap((user, index) => Array.from({ length: workersPerUser }, (_, worker) => {
    const address = addresses[worker % addresses.length] as string
    return work(user, createClient(address, tokens[index]), worker)
  }))

  return {
    ledger,

    /** Resolves once the service has acknowledged `further` more writes. */
    async acknowledged (further: number): Promise<void> {
      const goal = acknowledgedSoFar() + further
      while (acknowledgedSoFar() < goal) await once(events, 'acknowledged')
    },

    /** Stops the workers. Returns all contradictions among the responses and the rows in the database. */
    async stop (url = databaseUrl): Promise<string[]> {
      over.abort()
      await Promise.all(workers)
      const select = 'select owner as user, id::int, name from plants where owner = any($1)'
      const rows = await sql(url, select, [users])
      ledger.audit(rows as Array<{ user: string, id: number, name: string }>)
      return ledger.breaches()
    }
  }
}
