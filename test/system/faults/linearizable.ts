// Checks whether some order of the requests for one plant explains all responses.

/**
 * One request as its client saw it. The request took effect at one moment between `from` and `until`. If the
 * outcome is unknown, `until` is Infinity, and the request may have had no effect.
 */
export interface Operation {
  from: number
  until: number
  act: 'create' | 'delete' | 'see'
  /** The name in the create or in the list. Null for a delete, and for a list without the plant. */
  name: string | null
  /** Whether a create or delete changed the plant. Undefined for a list, and when the outcome is unknown. */
  done?: boolean
}

/** A possible state. `taken` holds the operations that have taken effect and have no response yet. */
interface Possibility { name: string | null, taken: Set<Operation> }

/**
 * Returns the plant's name after an operation on a plant named `name`. Returns undefined if the response
 * contradicts `name`, or if an operation of unknown outcome would change nothing.
 */
function after (name: string | null, { act, name: other, done }: Operation): string | null | undefined {
  if (act === 'see') return name === other ? name : undefined
  const changes = (act === 'create') === (name === null)
  if (done === undefined) return changes && act === 'create' ? other : changes ? null : undefined
  if (done !== changes) return undefined
  if (!done) return name
  return act === 'create' ? other : null
}

/**
 * Returns undefined if some order of the operations explains all responses. Otherwise returns the operation
 * with the earliest response that no order explains. Every order keeps the sequence of operations that do not
 * overlap in time. At the beginning the plant does not exist.
 *
 * The search computes all possible states after each response. An operation is open from its beginning to its
 * response. `applyReads`, `steps` and `openSieve` keep the number of states small.
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

/** Returns all beginnings and responses by time. At equal times a beginning precedes a response. */
function inTime (operations: Operation[]) {
  const completed = operations.filter(({ until }) => until < Infinity)
  return [
    ...operations.map((operation) => ({ operation, isResponse: false, at: operation.from })),
    ...completed.map((operation) => ({ operation, isResponse: true, at: operation.until }))
  ].sort((a, b) => a.at - b.at || Number(a.isResponse) - Number(b.isResponse))
}

/** Applies open operations in all orders until `operation` has taken effect. Returns the possible states. */
function advance (
  from: Possibility[], operation: Operation, open: Set<Operation>, kindOf: (operation: Operation) => string
) {
  const known = openSieve()
  const advanced: Possibility[] = []
  let frontier = from
  while (frontier.length > 0) {
    const next: Possibility[] = []
    for (const possibility of frontier.map((one) => applyReads(one, open)).filter(known.isNew)) {
      if (possibility.taken.has(operation)) advanced.push(possibility)
      else next.push(...steps(possibility, open, kindOf))
    }
    frontier = next
  }
  return advanced
}

/** Adds to `taken` the open operations of known outcome that agree with `name` and leave `name` unchanged. */
function applyReads ({ name, taken }: Possibility, open: Set<Operation>): Possibility {
  const reads = [...open]
    .filter((one) => one.until < Infinity && !taken.has(one) && after(name, one) === name)
  return { name, taken: new Set([...taken, ...reads]) }
}

function steps (
  { name, taken }: Possibility, open: Set<Operation>, kindOf: (operation: Operation) => string
) {
  const tried = new Set<string>()
  return [...open].flatMap((one): Possibility[] => {
    const next = after(name, one)
    if (taken.has(one) || next === undefined) return []
    // Responses cannot distinguish unknown operations of the same kind. So try one operation of each kind.
    if (one.until === Infinity) {
      const kind = kindOf(one)
      if (tried.has(kind)) return []
      tried.add(kind)
    }
    return [{ name: next, taken: new Set([...taken, one]) }]
  })
}

/**
 * Opens a filter that drops redundant states. A state is redundant if an earlier state has the same name and
 * `taken`. Additional operations of unknown outcome in `taken` do not make a later state new.
 */
function openSieve () {
  const passed = new Map<string, Possibility[]>()
  const numbers = new Map<Operation, number>()
  const numberOf = (operation: Operation) => {
    if (!numbers.has(operation)) numbers.set(operation, numbers.size)
    return numbers.get(operation) as number
  }
  const endless = ({ taken }: Possibility) => new Set([...taken].filter(({ until }) => until === Infinity))

  return {
    isNew (possibility: Possibility): boolean {
      const ending = [...possibility.taken].filter(({ until }) => until < Infinity)
        .map(numberOf).sort((a, b) => a - b)
      const key = `${ending} ${possibility.name}`
      const others = passed.get(key) ?? []
      if (others.some((other) => endless(other).isSubsetOf(endless(possibility)))) return false
      passed.set(key, [...others, possibility])
      return true
    }
  }
}
