// Decides whether some order of the requests for one plant explains all their responses.

/**
 * One request as its client saw it. The request took effect at one moment between `from` and `until`. Where
 * `until` is Infinity the outcome is unknown.
 */
export interface Operation {
  from: number
  until: number
  act: 'create' | 'delete' | 'see'
  /** The name that `create` gives or `see` found; null without a plant. */
  name: string | null
  /** Whether a create or delete changed the plant; undefined without a response. */
  done?: boolean
}

/** One possible state: the plant's name, and the open operations that have taken effect. */
interface Possibility { name: string | null, taken: Set<Operation> }

/** The plant's name afterwards; undefined when the response contradicts `name`. */
function after (name: string | null, { act, name: other, done }: Operation): string | null | undefined {
  if (act === 'see') return name === other ? name : undefined
  const changes = (act === 'create') === (name === null)
  if (done === undefined) return changes && act === 'create' ? other : changes ? null : undefined
  if (done !== changes) return undefined
  if (!done) return name
  return act === 'create' ? other : null
}

/**
 * The first operation, by the time of its response, that no order explains. Undefined when an order explains
 * all. An operation that ended before another began comes first. There is no plant at the beginning.
 *
 * The search goes from response to response and keeps all possible states. At a response its operation must
 * have taken effect, perhaps after other open ones. Two kinds of states are dropped: equal unknown operations
 * are interchangeable, and a state is redundant if another one has used fewer of them.
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

/** All beginnings and responses by time. Beginnings come first at the same moment, so that they overlap. */
function inTime (operations: Operation[]) {
  const completed = operations.filter(({ until }) => until < Infinity)
  return [
    ...operations.map((operation) => ({ operation, isResponse: false, at: operation.from })),
    ...completed.map((operation) => ({ operation, isResponse: true, at: operation.until }))
  ].sort((a, b) => a.at - b.at || Number(a.isResponse) - Number(b.isResponse))
}

/** The states in which the operation has taken effect. */
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

/** Operations that change nothing take effect as soon as they can. */
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

/** Drops a state when an earlier one has the same name and used fewer operations of unknown outcome. */
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
