// What waits, in an order that is fair among owners: each has a line of its own, and they take turns.

interface Entry<Item> {
  item: Item
  weight: number
  since: number
}

interface Line<Item> {
  entries: Array<Entry<Item>>
  weight: number
}

export interface FairQueue<Item> {
  /**
   * To the end of the owner's line. What has no weight takes nobody's place, and is only taken by
   * `take`. `since` is when it began to wait, elsewhere perhaps.
   */
  add (owner: string, item: Item, weight: number, since?: number): void

  /** Whose turn is next; undefined when nobody waits who may go. */
  first (): Item | undefined

  /** Takes what `first` shows. Its owner comes again after all others who wait. */
  take (): Item | undefined

  /** Takes all that have waited longer than this. */
  takeOlderThan (ms: number): Item[]

  /**
   * Takes the youngest item of the owner who has most waiting, to make room for another of this
   * owner's. Undefined when nobody has more than this owner would have then.
   */
  takeFromHeaviest (owner: string, weight: number): Item | undefined

  /** Of all that wait. */
  weight (): number
}

/** Who may not go keeps the place; the others pass. */
export function createFairQueue<Item> (mayGo: (owner: string) => boolean = () => true): FairQueue<Item> {
  // In the order of their turns.
  const lines = new Map<string, Line<Item>>()
  let total = 0

  function remove (owner: string, line: Line<Item>, index: number): Item {
    const { entries } = line
    const entry = index === 0 ? entries.shift() : entries.splice(index, 1)[0]
    const { item, weight } = entry as Entry<Item>
    line.weight -= weight
    total -= weight
    if (line.entries.length === 0) lines.delete(owner)
    return item
  }

  function next (): [owner: string, line: Line<Item>] | undefined {
    for (const [owner, line] of lines) if (mayGo(owner)) return [owner, line]
  }

  return {
    add (owner, item, weight, since = performance.now()) {
      const entry = { item, weight, since }
      const line = lines.get(owner)
      total += weight
      if (line === undefined) {
        lines.set(owner, { entries: [entry], weight })
        return
      }
      line.entries.push(entry)
      line.weight += weight
    },

    first: () => next()?.[1].entries[0]?.item,

    take () {
      const found = next()
      if (found === undefined) return undefined
      const [owner, line] = found
      lines.delete(owner)
      // Most have but one thing to wait for.
      if (line.entries.length > 1) lines.set(owner, line)
      return remove(owner, line, 0)
    },

    takeOlderThan (ms) {
      const before = performance.now() - ms
      const isOld = ({ since, weight }: Entry<Item>) => since < before && weight > 0
      const old: Item[] = []
      for (const [owner, line] of lines) {
        for (let index; (index = line.entries.findIndex(isOld)) !== -1;) old.push(remove(owner, line, index))
      }
      return old
    },

    takeFromHeaviest (owner, weight) {
      let [heaviest, most] = [owner, (lines.get(owner)?.weight ?? 0) + weight]
      for (const [other, line] of lines) if (line.weight > most) [heaviest, most] = [other, line.weight]
      if (heaviest === owner) return undefined
      const line = lines.get(heaviest) as Line<Item>
      return remove(heaviest, line, line.entries.findLastIndex(({ weight }) => weight > 0))
    },

    weight: () => total
  }
}
