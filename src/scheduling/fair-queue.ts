// Keeps one queue per user. Serves the queues by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).

interface UserQueue<Item> {
  entries: Array<{ item: Item, cost: number, queuedAt: number }>
  /** The cost that the user may still spend in this round. */
  deficit: number
}

export class FairQueue<Item> {
  #users = new Map<string, UserQueue<Item>>()
  readonly #quantum: number
  #size = 0

  /** `quantum`: the cost that each user may spend in a round. */
  constructor (quantum = 1) {
    this.#quantum = quantum
  }

  get size (): number {
    return this.#size
  }

  /** `queuedAt` is a time of `performance.now()`. With Infinity the entry never expires. */
  add (user: string, item: Item, cost = 1, queuedAt = performance.now()): void {
    let queue = this.#users.get(user)
    if (queue === undefined) this.#users.set(user, queue = { entries: [], deficit: this.#quantum })
    queue.entries.push({ item, cost, queuedAt })
    this.#size++
  }

  /** Takes the next item. Returns undefined if the queue is empty or the next item costs over `maxCost`. */
  next (maxCost = Infinity): Item | undefined {
    // The loop also visits keys that are added meanwhile, so it returns to users that it moves to the end.
    for (const [user, queue] of this.#users) {
      const { cost } = queue.entries[0] as typeof queue.entries[0]
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

  /** Takes all items that were queued before the time `before`, a value of `performance.now()`. */
  takeExpired (before: number): Item[] {
    const expired: Item[] = []
    for (const [user, queue] of this.#users) {
      for (let index; (index = queue.entries.findIndex(({ queuedAt }) => queuedAt < before)) !== -1;) {
        expired.push(this.#remove(user, queue, index))
      }
    }
    return expired
  }

  /** Takes the newest item of the longest queue, unless `user`'s queue plus one item would be the longest. */
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
    const entry = index === 0 ? entries.shift() : entries.splice(index, 1)[0]
    this.#size--
    if (entries.length === 0) this.#users.delete(user)
    // Replace the empty Map to free memory, because V8 keeps the old tables of a grown Map.
    if (this.#size === 0) this.#users = new Map()
    return (entry as typeof entries[0] & {}).item
  }
}
