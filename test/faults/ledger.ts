import { errorNumber, type Answer } from './caller.ts'

const idTaken = 40014
const plantNotFound = 40402
const databaseUnavailable = 50301

/** What a plant may be: the names it may have, and null when it may not be there. One possibility: known for sure. */
type Possible = Set<string | null>

const keyOf = (owner: string, id: number) => `${owner} ${id}`

/**
 * What callers may rely on after the answers they got: an acknowledged write
 * happened, a refused one didn't, any other may have. Each plant's requests
 * must come one after the other. `breaches` says which answers, or which rows
 * in the end, contradict that.
 */
export function openLedger () {
  const plants = new Map<string, Possible>()
  const counts = { created: 0, deleted: 0, refused: 0, unknown: 0, unsent: 0 }
  const breaches: string[] = []

  const possible = (owner: string, id: number): Possible => plants.get(keyOf(owner, id)) ?? new Set([null])
  const settle = (owner: string, id: number, wanted: Possible, what: string) => {
    if (wanted.size === 0) breaches.push(`plant ${id} of ${owner}: ${what}`)
    else plants.set(keyOf(owner, id), wanted)
  }
  const absent = (all: Possible): Possible => all.has(null) ? new Set([null]) : new Set()
  const present = (all: Possible): Possible => new Set([...all].filter((name) => name !== null))

  /** True when the answer leaves open whether the write happened. */
  function isUnknown (answer: Answer): boolean {
    if (answer.outcome === 'unsent') {
      counts.unsent++
      return false
    }
    const isUnknown = answer.outcome === 'cut' || errorNumber(answer) === databaseUnavailable
    if (isUnknown) counts.unknown++
    else if (answer.status >= 400) counts.refused++
    return isUnknown
  }

  return {
    breaches,
    counts,

    created (owner: string, id: number, name: string, answer: Answer): void {
      const before = possible(owner, id)
      if (isUnknown(answer)) {
        if (before.has(null)) plants.set(keyOf(owner, id), new Set([...before, name]))
      } else if (answer.status === 200) {
        counts.created++
        settle(owner, id, absent(before).size > 0 ? new Set([name]) : new Set(), 'created, though it was stored: it was lost')
      } else if (errorNumber(answer) === idTaken) {
        settle(owner, id, present(before), 'is taken, though it was refused or deleted: it came back')
      }
    },

    deleted (owner: string, id: number, answer: Answer): void {
      const before = possible(owner, id)
      if (isUnknown(answer)) {
        plants.set(keyOf(owner, id), new Set([...before, null]))
      } else if (answer.status === 204) {
        counts.deleted++
        settle(owner, id, present(before).size > 0 ? new Set([null]) : new Set(), 'deleted, though it was not there: it came back')
      } else if (errorNumber(answer) === plantNotFound) {
        settle(owner, id, absent(before), 'not found, though it was stored: it was lost')
      }
    },

    /** Compares all of it with the rows there really are. */
    audit (rows: Array<{ owner: string, id: number, name: string }>): void {
      const stored = new Map(rows.map(({ owner, id, name }) => [keyOf(owner, id), name]))
      for (const [key, all] of plants) {
        const name = stored.get(key) ?? null
        if (!all.has(name)) breaches.push(`plant ${key} in the end: ${name ?? 'gone'} instead of ${[...all].join(' or ')}`)
      }
      for (const [key, name] of stored) {
        if (!plants.has(key)) breaches.push(`plant ${key} in the end: ${name}, which nobody was told of`)
      }
    }
  }
}
