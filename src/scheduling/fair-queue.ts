// Entries in one queue per user, served by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).

interface Entry<Item> {
  item: Item
  cost: number
  /** By performance.now(). */
  queuedAt: number
}

interface UserQueue<Item> {
  entries: Array<Entry<Item>>
  /** How much cost the user may still take before other users are served. */
  deficit: number
}

export class FairQueue<Item> {
  /** In the order in which users are served. */
  #users = new Map<string, UserQueue<Item>>()
  readonly #quantum: number
  #size = 0

  /** `quantum`: how much cost each user may take in a round. */
  constructor (quantum = 1) {
    this.#quantum = quantum
  }

  /** How many entries all users have. */
  get size (): number {
    return this.#size
  }

  /** An entry with `queuedAt` Infinity never expires. */
  add (user: string, item: Item, cost = 1, queuedAt = performance.now()): void {
    const entry = { item, cost, queuedAt }
    const queue = this.#users.get(user)
    if (queue === undefined) this.#users.set(user, { entries: [entry], deficit: this.#quantum })
    else queue.entries.push(entry)
    this.#size++
  }

  /** Removes the next item; undefined when no entry is left or the next one costs more than `maxCost`. */
  next (maxCost = Infinity): Item | undefined {
    // The iterator also visits the users that are moved to the end meanwhile.
    for (const [user, queue] of this.#users) {
      const { cost } = queue.entries[0] as Entry<Item>
      if (queue.deficit < cost) {
        queue.deficit += this.#quantum
        this.#users.delete(user)
        this.#users.set(user, queue)
        continue
      }
      if (cost > maxCost) return undefined
      queue.deficit -= cost
      return this.#remove(user, queue, 0)
    }
  }

  /** Removes the items that were queued before a time by performance.now(). */
  takeExpired (before: number): Item[] {
    const expired: Item[] = []
    for (const [user, queue] of this.#users) {
      for (let index; (index = queue.entries.findIndex(({ queuedAt }) => queuedAt < before)) !== -1;) {
        expired.push(this.#remove(user, queue, index))
      }
    }
    return expired
  }

  /**
   * Removes the newest item of the user with the most entries, in favor of another entry of `user`.
   * Undefined when no user has more entries than `user` would have.
   */
  evictFromLargest (user: string): Item | undefined {
    let [largest, size] = [user, (this.#users.get(user)?.entries.length ?? 0) + 1]
    for (const [other, { entries }] of this.#users) {
      if (entries.length > size) [largest, size] = [other, entries.length]
    }
    if (largest === user) return undefined
    return this.#remove(largest, this.#users.get(largest) as UserQueue<Item>, size - 1)
  }

  #remove (user: string, queue: UserQueue<Item>, index: number): Item {
    const { entries } = queue
    const { item } = (index === 0 ? entries.shift() : entries.splice(index, 1)[0]) as Entry<Item>
    this.#size--
    if (entries.length === 0) this.#users.delete(user)
    // A long-lived Map rehashes now and then. Its old table keeps every later table alive until a full
    // collection, and all entries with them. An empty queue starts with a new Map instead.
    if (this.#size === 0) this.#users = new Map()
    return item
  }
}
