// Decides whether some order of the requests for one plant explains all their responses.

/**
 * One request as its client saw it. The request took effect at one moment between `from` and `until`. If the
 * outcome is unknown, `until` is Infinity, and the request may have had no effect.
 */
export interface Operation {
  from: number
  until: number
  act: 'create' | 'delete' | 'see'
  /** The name that a create gives or a list showed. Null for a delete, and for a list without the plant. */
  name: string | null
  /** Whether a create or delete changed the plant. Undefined for a list, and when the outcome is unknown. */
  done?: boolean
}

/**
 * One possible state: the plant's name (null if there is no plant), and the operations that have taken effect
 * although their responses are still to come.
 */
interface Possibility { name: string | null, taken: Set<Operation> }

/**
 * Returns the plant's name after an operation. `name` is the name before the operation. Returns undefined
 * when the response contradicts `name`, or when an operation of unknown outcome would change nothing.
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
 * Looks for an order of the operations that explains all responses. If one operation ended before another
 * began, the order must keep them in this sequence. At the beginning the plant does not exist. Returns
 * undefined when there is such an order. Otherwise goes through the responses by time, and returns the first
 * operation for which no order explains the responses up to its own.
 *
 * The search goes from response to response and keeps all possible states. An operation is open from its
 * beginning to its response. By its response it must have taken effect, perhaps after other open operations.
 * Three functions keep the search small. `applyReads` lets operations that change nothing take effect first.
 * If no response can tell several operations of unknown outcome apart, `steps` tries only one of them.
 * `openSieve` drops redundant states.
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

/**
 * Returns all beginnings and responses, sorted by time. At equal times beginnings come first, so that the
 * operations overlap.
 */
function inTime (operations: Operation[]) {
  const completed = operations.filter(({ until }) => until < Infinity)
  return [
    ...operations.map((operation) => ({ operation, isResponse: false, at: operation.from })),
    ...completed.map((operation) => ({ operation, isResponse: true, at: operation.until }))
  ].sort((a, b) => a.at - b.at || Number(a.isResponse) - Number(b.isResponse))
}

/** Tries all orders in which open operations take effect, up to `operation`. Returns the resulting states. */
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

/** Marks as taken all open operations with a known outcome that agree with the state and do not change it. */
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
    if (one.until === Infinity) {
      const kind = kindOf(one)
      if (tried.has(kind)) return []
      tried.add(kind)
    }
    return [{ name: next, taken: new Set([...taken, one]) }]
  })
}

/**
 * Opens a filter that drops redundant states. A state is redundant if it resembles an earlier state in three
 * ways. Both states have the same name. The same operations of known outcome have taken effect in both. All
 * operations of unknown outcome that took effect in the earlier state also took effect in the later state.
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
