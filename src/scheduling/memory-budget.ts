// How much of what was read may be in memory for readers who have not taken it yet, fair among owners.
import { finished, type Writable } from 'node:stream'

export interface Room {
  /** Whether more may be read for the owner. What doesn't fit any more is known only once it was read. */
  hasCapacity (owner: string): boolean

  /** To be called with how much of an answer is in memory, until it is over: from then on it is nothing. */
  open (owner: string, answer: Writable): (bytes: number) => void
}

/** `mostBytes` for one owner beside whom nobody has anything; of two the second has half of it, and so on. */
export function createMemoryBudget (mostBytes: number): Room {
  const heldBy = new Map<string, number>()
  let total = 0

  function change (owner: string, by: number): void {
    const held = (heldBy.get(owner) ?? 0) + by
    if (held === 0) heldBy.delete(owner)
    else heldBy.set(owner, held)
    total += by
  }

  return {
    hasCapacity (owner) {
      if (total < mostBytes) return true
      const held = heldBy.get(owner) ?? 0
      return held < mostBytes / (heldBy.size + (held === 0 ? 1 : 0))
    },

    open (owner, answer) {
      let held = 0
      let isOver = false
      function hold (bytes: number): void {
        if (isOver) return
        change(owner, bytes - held)
        held = bytes
      }
      finished(answer, () => {
        hold(0)
        isOver = true
      })
      return hold
    }
  }
}
