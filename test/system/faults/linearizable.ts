// Decides whether what clients saw of one plant can be explained by its requests taking place one after the other.

/**
 * One request as its client saw it. It took place at a moment between `from` and `until`; nobody knows whether and
 * when it did where `until` is Infinity.
 */
export interface Operation {
  from: number
  until: number
  act: 'create' | 'delete' | 'see'
  /** The plant's name, null where it is not there: what `create` wants, and what `see` found. */
  name: string | null
  /** Of a create or delete that was answered: whether it changed anything. */
  done?: boolean
}

/** One way in which it may have been until now: the plant's name, and which open operations have taken place. */
interface Possibility { name: string | null, taken: Set<Operation> }

/** What the plant is afterwards; undefined when the operation can't have been answered like this. */
function after (name: string | null, { act, name: other, done }: Operation): string | null | undefined {
  if (act === 'see') return name === other ? name : undefined
  const changes = (act === 'create') === (name === null)
  if (done === undefined) return changes && act === 'create' ? other : changes ? null : undefined
  if (done !== changes) return undefined
  if (!done) return name
  return act === 'create' ? other : null
}

/**
 * The first operation that no order explains, in order of the answers; undefined when there is an order. It respects
 * time: what was answered before another began comes first. The plant isn't there at the beginning.
 *
 * The possibilities are carried along from response to response. At each one its operation must have taken place, perhaps
 * after others that are still open. It doesn't matter which of several equal unknown operations did, nor is
 * a possibility needed that has used up more of them than another: so they stay few.
 */
export function findUnexplained (operations: Operation[]): Operation | undefined {
  const seen = new Set(operations.filter(({ act }) => act === 'see').map(({ name }) => name))
  const kindOf = ({ act, name }: Operation) => act === 'create' && seen.has(name) ? `create ${name}` : act
  const open = new Set<Operation>()
  let possibilities: Possibility[] = [{ name: null, taken: new Set() }]
  for (const { operation, isAnswer } of inTime(operations)) {
    if (!isAnswer) {
      open.add(operation)
      continue
    }
    possibilities = settle(possibilities, operation, open, kindOf)
    if (possibilities.length === 0) return operation
    open.delete(operation)
    for (const { taken } of possibilities) taken.delete(operation)
  }
  return undefined
}

/** Beginnings and answers; of what happens in the same moment the beginnings first, so that they overlap. */
function inTime (operations: Operation[]) {
  const answered = operations.filter(({ until }) => until < Infinity)
  return [
    ...operations.map((operation) => ({ operation, isAnswer: false, at: operation.from })),
    ...answered.map((operation) => ({ operation, isAnswer: true, at: operation.until }))
  ].sort((a, b) => a.at - b.at || Number(a.isAnswer) - Number(b.isAnswer))
}

/** The possibilities in which the operation has taken place. */
function settle (from: Possibility[], operation: Operation, open: Set<Operation>, kindOf: (operation: Operation) => string) {
  const known = openSieve()
  const settled: Possibility[] = []
  let frontier = from
  while (frontier.length > 0) {
    const next: Possibility[] = []
    for (const possibility of frontier.map((one) => look(one, open)).filter(known.isNew)) {
      if (possibility.taken.has(operation)) settled.push(possibility)
      else next.push(...steps(possibility, open, kindOf))
    }
    frontier = next
  }
  return settled
}

/** What changes nothing may as well take place as soon as it can. */
function look ({ name, taken }: Possibility, open: Set<Operation>): Possibility {
  const looks = [...open].filter((one) => one.until < Infinity && !taken.has(one) && after(name, one) === name)
  return { name, taken: new Set([...taken, ...looks]) }
}

function steps ({ name, taken }: Possibility, open: Set<Operation>, kindOf: (operation: Operation) => string) {
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

/** Lets through what none before has done with fewer of the operations that have no end. */
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
      const ending = [...possibility.taken].filter(({ until }) => until < Infinity).map(numberOf).sort((a, b) => a - b)
      const key = `${ending} ${possibility.name}`
      const others = passed.get(key) ?? []
      if (others.some((other) => endless(other).isSubsetOf(endless(possibility)))) return false
      passed.set(key, [...others, possibility])
      return true
    }
  }
}
