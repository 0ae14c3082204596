// Writes down what clients were told, and says which of it no order of their requests can explain.
import { errorNumber, type HttpResponse } from './client.ts'
import { findUnexplained, type Operation } from './linearizable.ts'

const idTaken = 40014
const plantNotFound = 40402
/** Away, slow or full. */
const databaseErrors = [50301, 50304, 50305]

interface PlantRow { owner: string, id: number, name: string }

/** One look at all plants of an owner. */
interface Look { owner: string, from: number, until: number, names: Map<number, string> }

/**
 * What clients may rely on: an acknowledged write happened, a rejected one didn't, any other may have, and each list
 * shows what was acknowledged before it was asked for. A list has no ids, so names begin with theirs and a space.
 */
export function openLedger () {
  const writes = new Map<string, Map<number, Operation[]>>()
  const looks: Look[] = []
  const counts = { created: 0, deleted: 0, listed: 0, rejected: 0, unknown: 0, unsent: 0 }

  function plantsOf (owner: string): Map<number, Operation[]> {
    const plants = writes.get(owner) ?? new Map<number, Operation[]>()
    writes.set(owner, plants)
    return plants
  }

  /** What the response says of a write; undefined when it can't have happened. */
  function outcome (response: HttpResponse, success: number, unchanged: number): Pick<Operation, 'until' | 'done'> | undefined {
    const number = errorNumber(response)
    if (response.outcome === 'cut' || databaseErrors.includes(number as number)) {
      counts.unknown++
      return { until: Infinity }
    }
    if (response.outcome === 'unsent') counts.unsent++
    else if (response.status >= 400) counts.rejected++
    const until = response.startedAt + response.ms
    if (response.status === success) return { until, done: true }
    return number === unchanged ? { until, done: false } : undefined
  }

  function write (owner: string, id: number, operation: Operation): void {
    const plants = plantsOf(owner)
    plants.set(id, [...plants.get(id) ?? [], operation])
  }

  return {
    counts,

    created (owner: string, id: number, name: string, response: HttpResponse): void {
      const known = outcome(response, 200, idTaken)
      if (known === undefined) return
      if (known.done) counts.created++
      write(owner, id, { from: response.startedAt, act: 'create', name, ...known })
    },

    deleted (owner: string, id: number, response: HttpResponse): void {
      const known = outcome(response, 204, plantNotFound)
      if (known === undefined) return
      if (known.done) counts.deleted++
      write(owner, id, { from: response.startedAt, act: 'delete', name: null, ...known })
    },

    /** A list of all plants of the owner, short enough to be one page. */
    listed (owner: string, response: HttpResponse): void {
      if (response.outcome !== 'complete' || response.status !== 200) return
      counts.listed++
      const plants: Array<{ name: string }> = JSON.parse(response.body)
      const names = new Map(plants.map(({ name }) => [Number.parseInt(name), name]))
      looks.push({ owner, from: response.startedAt, until: response.startedAt + response.ms, names })
    },

    /** What there really is in the end. */
    audit (rows: PlantRow[]): void {
      const now = performance.now()
      for (const { owner } of rows) plantsOf(owner)
      for (const owner of writes.keys()) {
        const names = new Map(rows.filter((row) => row.owner === owner).map(({ id, name }) => [id, name]))
        looks.push({ owner, from: now, until: now, names })
      }
    },

    /** A sentence for each plant whose history has no explanation. */
    breaches (): string[] {
      return [...writes.keys()].flatMap((owner) => {
        const ofOwner = looks.filter((look) => look.owner === owner)
        const ids = new Set([...plantsOf(owner).keys(), ...ofOwner.flatMap(({ names }) => [...names.keys()])])
        return [...ids].flatMap((id) => {
          const sights = ofOwner.map(({ from, until, names }): Operation =>
            ({ from, until, act: 'see', name: names.get(id) ?? null }))
          const operations = [...plantsOf(owner).get(id) ?? [], ...sights]
          const culprit = findUnexplained(operations)
          return culprit === undefined ? [] : [`plant ${id} of ${owner}: ${describe(culprit, operations)}`]
        })
      })
    }
  }
}

/** The culprit, and what was going on around it. */
function describe (culprit: Operation, operations: Operation[]): string {
  const before = operations.filter(({ from }) => from <= culprit.until).sort((a, b) => a.from - b.from).slice(-8)
  return `${JSON.stringify(culprit)} cannot be explained after ${before.map((one) => JSON.stringify(one)).join(', ')}`
}
