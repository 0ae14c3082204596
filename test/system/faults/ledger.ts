// Records the responses to many requests. Finds responses that no order of the requests could produce.
import { errorNumber, type HttpResponse } from './client.ts'
import { findUnexplained, type Operation } from './linearizable.ts'

/** The status of a write that changed the plant, and the error number of a write that changed nothing. */
const answers = { create: [200, 40014], delete: [204, 40402] }
/** After these errors the write may or may not have happened. */
const unclearErrors = [50001, 50301, 50304, 50305]

interface PlantRow { user: string, id: number, name: string }

/** All plants of a user, by id. The service read each plant at some moment between `from` and `until`. */
interface Snapshot { user: string, from: number, until: number, names: Map<number, string> }

/** The name of each plant must begin with the plant's id and a space, because a list contains no ids. */
export function openLedger () {
  const writes = new Map<string, Map<number, Operation[]>>()
  const snapshots: Snapshot[] = []
  const counts = { created: 0, deleted: 0, listed: 0, rejected: 0, unknown: 0, unsent: 0 }
  /** How many requests got no response, or a response with a status of 500 or more. */
  let failed = 0

  function plantsOf (user: string): Map<number, Operation[]> {
    const plants = writes.get(user) ?? new Map<number, Operation[]>()
    writes.set(user, plants)
    return plants
  }

  /** Returns undefined if the write did not reach the database. */
  function outcomeOf (
    act: 'create' | 'delete', response: HttpResponse
  ): Pick<Operation, 'until' | 'done'> | undefined {
    const [success, unchanged] = answers[act]
    const number = errorNumber(response)
    if (hasFailed(response)) failed++
    if (response.outcome === 'cut' || unclearErrors.includes(number as number)) {
      counts.unknown++
      return { until: Infinity }
    }
    if (response.outcome === 'unsent') counts.unsent++
    else if (response.status >= 400) counts.rejected++
    const until = response.startedAt + response.ms
    if (response.status === success) return { until, done: true }
    return number === unchanged ? { until, done: false } : undefined
  }

  return {
    counts,
    failed: () => failed,

    /** The name of a deleted plant is null. */
    wrote (user: string, id: number, name: string | null, response: HttpResponse): void {
      const act = name === null ? 'delete' : 'create'
      const known = outcomeOf(act, response)
      if (known === undefined) return
      if (known.done) counts[`${act}d`]++
      const plants = plantsOf(user)
      plants.set(id, [...plants.get(id) ?? [], { from: response.startedAt, act, name, ...known }])
    },

    /** The request must have asked for all plants of the user. */
    listed (user: string, response: HttpResponse): void {
      if (hasFailed(response)) failed++
      if (response.status !== 200) return
      counts.listed++
      const plants: Array<{ name: string }> = JSON.parse(response.body)
      const names = new Map(plants.map(({ name }) => [Number.parseInt(name), name]))
      snapshots.push({ user, from: response.startedAt, until: response.startedAt + response.ms, names })
    },

    /** `rows` are all plants in the database after the last response. */
    audit (rows: PlantRow[]): void {
      const now = performance.now()
      for (const { user } of rows) plantsOf(user)
      for (const user of writes.keys()) {
        const names = new Map(rows.filter((row) => row.user === user).map(({ id, name }) => [id, name]))
        snapshots.push({ user, from: now, until: now, names })
      }
    },

    breaches (): string[] {
      return [...writes.keys()].flatMap((user) => {
        const ofUser = snapshots.filter((snapshot) => snapshot.user === user)
        const ids = new Set([...plantsOf(user).keys(), ...ofUser.flatMap(({ names }) => [...names.keys()])])
        return [...ids].flatMap((id) => {
          const views = ofUser.map(({ from, until, names }): Operation =>
            ({ from, until, act: 'see', name: names.get(id) ?? null }))
          const operations = [...plantsOf(user).get(id) ?? [], ...views]
          const culprit = findUnexplained(operations)
          return culprit === undefined ? [] : [`plant ${id} of ${user}: ${describe(culprit, operations)}`]
        })
      })
    }
  }
}

const hasFailed = ({ outcome, status }: HttpResponse) => outcome !== 'complete' || status >= 500

function describe (culprit: Operation, operations: Operation[]): string {
  const before = operations.filter(({ from }) => from <= culprit.until).sort((a, b) => a.from - b.from)
  const shown = before.slice(-8).map((one) => JSON.stringify(one)).join(', ')
  return `${JSON.stringify(culprit)} cannot be explained after ${shown}`
}
