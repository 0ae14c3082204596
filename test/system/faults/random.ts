export type Random = ReturnType<typeof createRandom>

/** Creates a seeded random number generator (mulberry32). */
export function createRandom (seed: number) {
  let state = seed >>> 0
  const next = () => {
    state = (state + 0x6D2B79F5) >>> 0
    let mixed = Math.imul(state ^ (state >>> 15), state | 1)
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61)
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32
  }
  return {
    /** An integer from 0 to `end` - 1. */
    below: (end: number) => Math.floor(next() * end),
    chance: (probability: number) => next() < probability,
    pick: <Item>(items: Item[]) => items[Math.floor(next() * items.length)] as Item,
    shuffled: <Item>(items: Item[]) => items.map((item) => [next(), item] as const)
      .sort(([a], [b]) => a - b).map(([, item]) => item)
  }
}
