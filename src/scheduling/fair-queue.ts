// What waits, in an order that is fair among owners: each has a line of its own, and they take turns.

/** As long as a statement may take by default: behind a server that hangs an answer is due. */
const maxWaitMs = 5000

/** So often who has waited too long is looked for: each time it would cost as much as all else here. */
const sweepMs = 50

interface Entry<Item> {
  item: Item
  weight: number
  since: number
}

interface Line<Item> {
  entries: Array<Entry<Item>>
  weight: number
}

export class FairQueue<Item> {
  /** In the order of their turns. */
  #lines = new Map<string, Line<Item>>()
  readonly #canRun: (owner: string) => boolean
  #weight = 0
  #lookedAt = 0

  /** Who may not go keeps the place; the others pass. */
  constructor (canRun: (owner: string) => boolean = () => true) {
    this.#canRun = canRun
  }

  /** Of all that wait. */
  get weight (): number {
    return this.#weight
  }

  /**
   * To the end of the owner's line. What has no weight takes nobody's place, and is only taken by
   * `take`. `since` is when it began to wait, elsewhere perhaps.
   */
  add (owner: string, item: Item, weight: number, since = performance.now()): void {
    const entry = { item, weight, since }
    const line = this.#lines.get(owner)
    this.#weight += weight
    if (line === undefined) {
      this.#lines.set(owner, { entries: [entry], weight })
      return
    }
    line.entries.push(entry)
    line.weight += weight
  }

  /** Whether nobody waits who may go. */
  isIdle (): boolean {
    for (const owner of this.#lines.keys()) if (this.#canRun(owner)) return false
    return true
  }

  /** Takes items in their turn up to the first that doesn't fit. Its owner comes again after all others. */
  take (fits: (item: Item) => boolean): Item[] {
    const taken: Item[] = []
    // Finds those as well that go back to the end meanwhile.
    for (const [owner, line] of this.#lines) {
      if (!this.#canRun(owner)) continue
      if (!fits((line.entries[0] as Entry<Item>).item)) break
      taken.push(this.#remove(owner, line, 0))
      if (line.entries.length === 0) continue
      this.#lines.delete(owner)
      this.#lines.set(owner, line)
    }
    // One that is used on and on makes a new table of itself every so often. The old one, dead but not
    // collected yet, leads to the new one: all of them, and what was in them, would pass for long-lived.
    if (this.#lines.size === 0) this.#lines = new Map()
    return taken
  }

  /** Takes the one whose turn is next; undefined when nobody waits who may go. */
  takeNext (): Item | undefined {
    let items = 0
    return this.take(() => ++items === 1)[0]
  }

  /** Takes all that have waited for more than five seconds, to be refused. */
  takeExpired (): Item[] {
    const now = performance.now()
    if (now < this.#lookedAt + sweepMs) return []
    this.#lookedAt = now
    const before = now - maxWaitMs
    const isOld = ({ since, weight }: Entry<Item>) => since < before && weight > 0
    const old: Item[] = []
    for (const [owner, line] of this.#lines) {
      for (let index; (index = line.entries.findIndex(isOld)) !== -1;) {
        old.push(this.#remove(owner, line, index))
      }
    }
    return old
  }

  /**
   * Takes the youngest item of the owner who has most waiting, to make room for another of this
   * owner's. Undefined when nobody has more than this owner would have then.
   */
  evictFromLargest (owner: string, weight: number): Item | undefined {
    let [heaviest, most] = [owner, (this.#lines.get(owner)?.weight ?? 0) + weight]
    for (const [other, line] of this.#lines) if (line.weight > most) [heaviest, most] = [other, line.weight]
    if (heaviest === owner) return undefined
    const line = this.#lines.get(heaviest) as Line<Item>
    return this.#remove(heaviest, line, line.entries.findLastIndex(({ weight }) => weight > 0))
  }

  #remove (owner: string, line: Line<Item>, index: number): Item {
    const { entries } = line
    const entry = index === 0 ? entries.shift() : entries.splice(index, 1)[0]
    const { item, weight } = entry as Entry<Item>
    line.weight -= weight
    this.#weight -= weight
    if (entries.length === 0) this.#lines.delete(owner)
    return item
  }
}
