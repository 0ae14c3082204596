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
  if (done === undefined) return changes ? other : undefined
  if (done !== changes) return undefined
  return done ? other : name
}

/**
 * Returns undefined if an order of the operations produces all responses. Otherwise returns the first
 * operation with a response that no order produces. Operations that did not overlap keep their sequence.
 *
 * The search computes all possible states of the plant after each response. An operation is open, and may
 * take effect, from its request until its response.
 */
export function findUnexplained (operations: Operation[]): Operation | undefined {
  const seen = new Set(operations.filter(({ act }) => act === 'see').map(({ name }) => name))
  const kindOf = ({ act, name }: Operation) => act === 'create' && seen.has(name) ? `create ${name}` : act
  const open = new Set<Operation>()
  let possibilities: Possibility[] = [{ name: null, taken: new Set() }]
  for (const { operation, isResponse } of inTime(operations)) {
    if (!isResponse) {
      open.add(operation)
      continue
    }
    possibilities = advance(possibilities, operation, open, kindOf)
    if (possibilities.length === 0) return operation
    open.delete(operation)
    for (const { taken } of possibilities) taken.delete(operation)
  }
  return undefined
}

function inTime (operations: Operation[]) {
  const completed = operations.filter(({ until }) => until < Infinity)
  return [
    ...operations.map((operation) => ({ operation, isResponse: false, at: operation.from })),
    ...completed.map((operation) => ({ operation, isResponse: true, at: operation.until }))
  ].sort((a, b) => a.at - b.at || Number(a.isResponse) - Number(b.isResponse))
}

/** Applies open operations in every order until `operation` takes effect. Returns all resulting states. */
function advance (
  from: Possibility[], operation: Operation, open: Set<Operation>, kindOf: (operation: Operation) => string
) {
  const isNew = createSieve()
  const advanced: Possibility[] = []
  let frontier = from
  while (frontier.length > 0) {
    const next: Possibility[] = []
    for (const possibility of frontier.map((one) => applyReads(one, open)).filter(isNew)) {
      if (possibility.taken.has(operation)) advanced.push(possibility)
      else next.push(...steps(possibility, open, kindOf))
    }
    frontier = next
  }
  return advanced
}

/** Adds to `taken` each open operation that can take effect without changing `name`. */
function applyReads ({ name, taken }: Possibility, open: Set<Operation>): Possibility {
  const reads = [...open].filter((one) => !taken.has(one) && after(name, one) === name)
  return { name, taken: new Set([...taken, ...reads]) }
}

function steps (
  { name, taken }: Possibility, open: Set<Operation>, kindOf: (operation: Operation) => string
) {
  const tried = new Set<string>()
  return [...open].flatMap((one): Possibility[] => {
    const next = after(name, one)
    if (taken.has(one) || next === undefined) return []
    // Operations of unknown outcome and of the same kind are interchangeable. So try one of each kind.
    if (one.until === Infinity) {
      const kind = kindOf(one)
      if (tried.has(kind)) return []
      tried.add(kind)
    }
    return [{ name: next, taken: new Set([...taken, one]) }]
  })
}

/**
 * Returns a function that returns false if an earlier state had the same name and the same `taken`, or if
 * this state only adds operations of unknown outcome to that `taken`.
 */
function createSieve () {
  const passed = new Map<string | null, Array<Possibility['taken']>>()
  return ({ name, taken }: Possibility): boolean => {
    const others = passed.get(name) ?? []
    passed.set(name, others)
    const isKnown = others.some((other) => other.isSubsetOf(taken) &&
      [...taken.difference(other)].every(({ until }) => until === Infinity))
    if (!isKnown) others.push(taken)
    return !isKnown
  }
}
