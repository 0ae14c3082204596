import { EventEmitter, once } from 'node:events'
import { setTimeout as delay } from 'node:timers/promises'
import { sql } from '../../support/database.ts'
import { createClient, errorNumber, type Client, type HttpResponse } from './client.ts'
import { findUnexplained, type Operation } from './linearizable.ts'
import { createUsers } from './postgres.ts'
import { createRandom } from './random.ts'

const users = ['storm-ada', 'storm-bo', 'storm-cy']
const workersPerUser = 8
// With few plants, several workers often write the same plant.
const ids = [...Array(160).keys()]

/**
 * Starts workers that create, delete and list plants. Each worker sends all requests to one address, and
 * waits `pause` milliseconds after each response.
 */
export async function startWriters (
  databaseUrl: string, addresses: string[], random = createRandom(Date.now()), pause = 0
) {
  const tokens = await createUsers(databaseUrl, users)
  const ledger = openLedger()
  const events = new EventEmitter()
  const over = new AbortController()

  async function act (user: string, client: Client, id: number, name: string): Promise<HttpResponse> {
    if (random.chance(0.1)) return ledger.listed(user, await client.list())
    if (random.chance(0.6)) return ledger.wrote(user, id, name, await client.create({ id, name }))
    return ledger.wrote(user, id, null, await client.delete(id))
  }

  const workers = users.flatMap((user, index) => Array.from({ length: workersPerUser }, async (_, worker) => {
    const client = createClient(addresses[worker % addresses.length] as string, tokens[index])
    for (let round = 0; !over.signal.aborted; round++) {
      const id = random.pick(ids)
      const { status } = await act(user, client, id, `${id} by ${worker} in round ${round}`)
      events.emit('response')
      const wait = status === 0 || status === 503 ? Math.max(50, pause) : pause
      if (wait > 0) await delay(wait)
    }
    client.close()
  }))
  const acknowledgedSoFar = () => ledger.counts.created + ledger.counts.deleted

  return {
    ledger,

    /** Resolves once the service has acknowledged `further` more writes. */
    async acknowledged (further: number): Promise<void> {
      const goal = acknowledgedSoFar() + further
      while (acknowledgedSoFar() < goal) await once(events, 'response')
    },

    /** Stops the workers. Returns all contradictions among the responses and the rows in the database. */
    async stop (url = databaseUrl): Promise<string[]> {
      over.abort()
      await Promise.all(workers)
      for (const user of users) {
        const rows = await sql(url, 'select id::int, name from plants where owner = $1', [user])
        ledger.saw(user, rows as Array<{ id: number, name: string }>, performance.now())
      }
      return ledger.breaches()
    }
  }
}

/** The status of a write that changed the plant, and the error numbers of a write that changed nothing. */
const answers = { create: [200, 40014, 40019], delete: [204, 40402] }
/** After these errors the write may or may not have happened. */
const unclearErrors = [50001, 50301, 50304, 50305]

/** Records the responses to many requests. Finds responses that no order of the requests could produce. */
function openLedger () {
  const histories = new Map<string, Operation[]>()
  const counts = { created: 0, deleted: 0, listed: 0, rejected: 0, unknown: 0, unsent: 0, failed: 0 }
  let readsCount = true

  const record = (user: string, id: number, operation: Operation) =>
    histories.getOrInsertComputed(`plant ${id} of ${user}`, () => []).push(operation)

  function count (response: HttpResponse, counter?: keyof typeof counts): void {
    if (response.outcome !== 'complete' || response.status >= 500) counts.failed++
    if (counter !== undefined) counts[counter]++
  }

  /**
   * The user had exactly these plants at a moment between `from` and `until`. Each name begins with the id,
   * because a list contains no ids.
   */
  function saw (user: string, plants: Array<{ id?: number, name: string }>, from: number, until = from) {
    const names = new Map(plants.map(({ id, name }) => [id ?? Number.parseInt(name), name]))
    for (const id of new Set([...ids, ...names.keys()])) {
      record(user, id, { from, until, act: 'see', name: names.get(id) ?? null })
    }
  }

  return {
    counts,
    saw,
    /** Without `count`, later responses only tell of the changes that they acknowledge. */
    countReads: (count: boolean) => { readsCount = count },
    /** Returns how many requests got no response, or a response with a status of 500 or more. */
    failed: () => counts.failed,

    /** The name of a deleted plant is null. */
    wrote (user: string, id: number, name: string | null, response: HttpResponse): HttpResponse {
      const act = name === null ? 'delete' : 'create'
      const [success, ...unchanged] = answers[act]
      const { outcome, status, startedAt: from, ms } = response
      const number = errorNumber(response)
      const done = status === success
      const isUnknown = outcome === 'cut' || unclearErrors.includes(number)
      count(response, isUnknown ? 'unknown' : outcome === 'unsent' ? 'unsent' : done ? `${act}d` : 'rejected')
      if (isUnknown) record(user, id, { from, until: Infinity, act, name })
      // Any other write did not reach the database.
      else if (done || (readsCount && unchanged.includes(number))) {
        record(user, id, { from, until: from + ms, act, name, done })
      }
      return response
    },

    /** The request must have asked for all plants. */
    listed (user: string, response: HttpResponse): HttpResponse {
      const { status, body, startedAt, ms } = response
      count(response, status === 200 ? 'listed' : undefined)
      if (status === 200 && readsCount) saw(user, JSON.parse(body), startedAt, startedAt + ms)
      return response
    },

    breaches: () => [...histories].flatMap(([plant, operations]) => {
      const culprit = findUnexplained(operations)
      if (culprit === undefined) return []
      const before = operations.filter(({ from }) => from <= culprit.until).sort((a, b) => a.from - b.from)
      const shown = JSON.stringify(before.slice(-8))
      return [`${plant}: ${JSON.stringify(culprit)} cannot be explained after ${shown}`]
    })
  }
}
