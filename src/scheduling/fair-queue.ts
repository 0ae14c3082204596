// Keeps one queue per user. Serves the queues by deficit round robin (Shreedhar and Varghese, SIGCOMM 1995).

interface Entry<Item> { item: Item, cost: number, queuedAt: number }

interface UserQueue<Item> {
  user: string
  entries: Array<Entry<Item>>
  /** The cost that the user may still spend in this round. Each round adds 1. */
  deficit: number
}

export class FairQueue<Item> {
  /** The number of entries. Only for reading. */
  size = 0
  #users = new Map<string, UserQueue<Item>>()

  /** `queuedAt` is a time of `performance.now()`. By default the entry never expires. */
  add (user: string, item: Item, cost = 1, queuedAt = Infinity): void {
    let queue = this.#users.get(user)
    if (queue === undefined) this.#users.set(user, queue = { user, entries: [], deficit: 1 })
    queue.entries.push({ item, cost, queuedAt })
    this.size++
  }

  /**
   * Takes the next item of a user who is not blocked. Returns undefined if there is none, or if this item
   * costs over `maxCost`. So an item that does not fit ends a batch.
   */
  next (maxCost = Infinity, isBlocked?: (user: string) => boolean): Item | undefined {
    // The loop also visits keys that are added meanwhile, so it returns to users that it moves to the end.
    for (const [user, queue] of this.#users) {
      if (isBlocked?.(user)) continue
      const { cost } = queue.entries[0] as Entry<Item>
      if (queue.deficit < cost) {
        queue.deficit++
        this.#users.delete(user)
        this.#users.set(user, queue)
        continue
      }
      if (cost > maxCost) return undefined
      queue.deficit -= cost
      return this.#remove(queue, 0)
    }
  }

  /** Takes all items that were queued before the time `before`, a value of `performance.now()`. */
  takeExpired (before: number): Item[] {
    const expired: Item[] = []
    for (const queue of this.#users.values()) {
      for (let index; (index = queue.entries.findIndex(({ queuedAt }) => queuedAt < before)) !== -1;) {
        expired.push(this.#remove(queue, index))
      }
    }
    return expired
  }

  /** Takes the newest item of the longest queue. If several queues are the longest, prefers `user`'s. */
  evictFromLargest (user: string): Item {
    let largest = this.#users.get(user) as UserQueue<Item>
    for (const each of this.#users.values()) if (each.entries.length > largest.entries.length) largest = each
    return this.#remove(largest, largest.entries.length - 1)
  }

  #remove ({ user, entries }: UserQueue<Item>, index: number): Item {
    const entry = index === 0 ? entries.shift() : entries.splice(index, 1)[0]
    this.size--
    if (entries.length === 0) this.#users.delete(user)
    // Replace the empty Map: a Map is slow after many deletes, and V8 keeps its old tables for a while.
    if (this.size === 0) this.#users = new Map()
    return (entry as Entry<Item>).item
  }
}
