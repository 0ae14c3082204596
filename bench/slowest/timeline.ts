// Tells what the main thread of a Node program did at each time.
import type { Marks } from './marks.ts'

export interface Interval { start: number, end: number }

/** A sorted list of intervals that do not overlap. */
class Intervals {
  readonly #list: Interval[] = []

  constructor (intervals: Interval[]) {
    for (const { start, end } of intervals.toSorted((a, b) => a.start - b.start)) {
      const last = this.#list.at(-1)
      if (last !== undefined && start < last.end) last.end = Math.max(last.end, end)
      else if (end > start) this.#list.push({ start, end })
    }
  }

  /** Returns the index of the last interval that starts at or before the time, or -1. */
  #indexAt (time: number): number {
    let [low, high] = [0, this.#list.length]
    while (low < high) {
      const middle = (low + high) >> 1
      if ((this.#list[middle] as Interval).start <= time) low = middle + 1
      else high = middle
    }
    return low - 1
  }

  /** Returns the parts of the intervals that are within the window. */
  within ({ start, end }: Interval): Interval[] {
    const parts: Interval[] = []
    for (let index = Math.max(0, this.#indexAt(start)); index < this.#list.length; index++) {
      const each = this.#list[index] as Interval
      if (each.start >= end) break
      const part = { start: Math.max(start, each.start), end: Math.min(end, each.end) }
      if (part.end > part.start) parts.push(part)
    }
    return parts
  }

  /** Returns the rest of the window. */
  outside ({ start, end }: Interval): Interval[] {
    const rest: Interval[] = []
    for (const part of this.within({ start, end })) {
      if (part.start > start) rest.push({ start, end: part.start })
      start = part.end
    }
    if (end > start) rest.push({ start, end })
    return rest
  }

  /** Returns the end of the last interval that ends at or before the time. */
  lastEnd (time: number): number {
    for (let index = this.#indexAt(time); index >= 0; index--) {
      const { end } = this.#list[index] as Interval
      if (end <= time) return end
    }
    return -Infinity
  }
}

export const lengthOf = (intervals: Interval[]) =>
  intervals.reduce((sum, { start, end }) => sum + end - start, 0)

export class Timeline {
  /** The event loop waits for input. */
  readonly #idle: Intervals
  readonly #collections: Intervals
  /** The thread waits for a core. */
  readonly #waits: Intervals
  /** The statements of each name. */
  readonly #statements: Map<string, Intervals>

  constructor ({ samples, collections, statements }: Marks) {
    // Before the callbacks of a tick, the event loop waits for input, and then its thread for a core.
    const idle: Interval[] = []
    const waits: Interval[] = []
    for (const [index, [end, idleAfter, waitedAfter]] of samples.entries()) {
      const [start, idleBefore, waitedBefore] = samples[index - 1] ?? [end, idleAfter, waitedAfter]
      const woken = Math.max(start, end - (waitedAfter - waitedBefore))
      waits.push({ start: woken, end })
      const [idleMs, asleep] = [idleAfter - idleBefore, Math.max(start, end - (idleAfter - idleBefore))]
      // The idle time includes the time of waiting for a core.
      if (idleMs > 0.001) idle.push({ start: asleep, end: Math.max(woken, asleep + 0.001) })
    }
    this.#idle = new Intervals(idle)
    this.#waits = new Intervals(waits)
    this.#collections = new Intervals(collections)
    this.#statements = new Map(Map.groupBy(statements, ({ name }) => kindOf(name)).entries()
      .map(([name, list]) => [name, new Intervals(list)] as const))
  }

  /** Returns the start of the tick at this time. */
  tickStart = (time: number) => this.#idle.lastEnd(time)

  /** Divides a window. `busy` is the time of callbacks. */
  divide (window: Interval) {
    const running = this.#collections.outside(window)
    const awake = running.flatMap((part) => this.#waits.outside(part))
    const busy = awake.flatMap((part) => this.#idle.outside(part))
    return {
      collection: lengthOf([window]) - lengthOf(running),
      core: lengthOf(running) - lengthOf(awake),
      idle: lengthOf(awake) - lengthOf(busy),
      busy: lengthOf(busy)
    }
  }

  /** Returns the parts of the window in which a statement of the kind was in flight. */
  inFlight = (kind: string, window: Interval) => this.#statements.get(kind)?.within(window) ?? []
}

/** Each kind of statements has queues of its own. */
export const kindOf = (statement: string) =>
  /^tokens/.test(statement) ? 'token' : /-(insert|delete|page)/.exec(statement)?.[1] ?? statement
