// Checks whether the requests for one plant could have produced all their responses in some order.

/**
 * A request that took effect at one moment between `from` and `until`. `until` is Infinity if the client
 * cannot know whether the request took effect at all.
 */
export interface Operation {
  from: number
  until: number
  act: 'create' | 'delete' | 'see'
  /** The plant's name in a create or in a list. Null for a delete, and for a list without the plant. */
  name: string | null
  /** Whether a create or delete changed the plant. Undefined for a list, and when the outcome is unknown. */
  done?: boolean
}

/** A possible state of the plant. `taken`: the operations that took effect and await their responses. */
interface Possibility { name: string | null, taken: Set<Operation> }

/**
 * Returns the plant's name after the operation, or null if there is no plant. Returns undefined if the
 * response is impossible, or if an operation of unknown outcome would change nothing (the search skips it).
 */
function after (name: string | null, { act, name: other, done }: Operation): string | null | undefined {
  if (act === 'see') return name === other ? name : undefined
  const changes = (act === 'create') === (name === null)
  if (changes !== (done ?? true)) return undefined
  return changes ? other : name
}

/**
 * Returns undefined if an order of the operations produces all responses. Otherwise returns the first
 * operation with a response that no order produces. Operations that did not overlap keep their sequence.
 *
 * The search computes all possible states of the plant after each response. An operation is open, and may
 * take effect, from its request until its response.
 */
export function findUnexplained (operations: Operation[]): Operation | undefined {
  const open = new Set<Operation>()
  let possibilities: Possibility[] = [{ name: null, taken: new Set() }]
  const seen = new Set(operations.filter(({ act }) => act === 'see').map(({ name }) => name))
  // Operations of unknown outcome and of the same kind are interchangeable. The search tries one of them.
  const kindOf = (one: Operation) => {
    if (one.until < Infinity) return one
    return one.act === 'create' && seen.has(one.name) ? `create ${one.name}` : one.act
  }

  /** Applies open operations in every order until `operation` takes effect. Returns all resulting states. */
  function advance (operation: Operation): Possibility[] {
    const tried: Possibility[] = []
    const queue = [...possibilities]
    for (const { name, taken: before } of queue) {
      // Operations that do not change the name, such as lists, take effect as soon as they can.
      const taken = new Set([...before, ...[...open].filter((one) => after(name, one) === name)])
      // Skip a state that only adds operations of unknown outcome to an earlier state.
      const isKnown = tried.some((other) => other.name === name && other.taken.isSubsetOf(taken) &&
        [...taken.difference(other.taken)].every(({ until }) => until === Infinity))
      if (isKnown) continue
      tried.push({ name, taken })
      if (taken.has(operation)) continue
      for (const [one] of Map.groupBy(open.difference(taken), kindOf).values() as Iterable<[Operation]>) {
        const next = after(name, one)
        if (next !== undefined) queue.push({ name: next, taken: new Set([...taken, one]) })
      }
    }
    return tried.filter(({ taken }) => taken.has(operation))
  }

  // The sort is stable: of two events at the same time, the request comes before the response.
  const requests = operations.map((operation) => ({ operation, at: operation.from }))
  const responses = operations.map((operation) => ({ operation, at: operation.until }))
  const events = [...requests, ...responses].filter(({ at }) => at < Infinity).sort((a, b) => a.at - b.at)
  for (const { operation } of events) {
    if (!open.has(operation)) {
      open.add(operation)
      continue
    }
    possibilities = advance(operation)
    if (possibilities.length === 0) return operation
    open.delete(operation)
    for (const { taken } of possibilities) taken.delete(operation)
  }
  return undefined
}
