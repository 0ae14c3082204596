// Divides the time of each request by what the request waited for.
import type { Sent } from './generator.ts'
import type { Marks } from './marks.ts'
import { kindOf, lengthOf, Timeline, type Interval } from './timeline.ts'

export const parts = {
  way: 'way to the service: network, wake-up',
  core: 'the service waits for a core',
  collection: 'garbage collection',
  others: 'callbacks of other requests, before the request is read',
  own: 'callbacks from then on, of this request and of others',
  token: 'token look-up',
  batch: 'a batch in flight',
  list: 'PostgreSQL: list',
  write: 'PostgreSQL: create or delete, with the commit',
  unknown: 'batch in flight and PostgreSQL',
  back: 'way back and the generator'
}
export type Part = keyof typeof parts
export type Divided = Partial<Record<Part, number>> & { total: number }

/**
 * Divides the requests. `isService`: the program publishes its statements. `busy` is the time in ms in which
 * the program ran callbacks.
 */
export function divide (
  sent: Sent[], marks: Marks, isService: boolean
): { requests: Divided[], busy: number } {
  const timeline = new Timeline(marks)
  const requests = new Map(marks.requests.map((request) => [request.id, request]))
  const statements = new Map<number, Marks['statements']>()
  for (const statement of marks.statements) {
    for (const id of statement.ids) statements.set(id, [...statements.get(id) ?? [], statement])
  }
  const whole = { start: sent[0]?.sent ?? 0, end: sent.at(-1)?.sent ?? 0 }
  const divided = sent.flatMap(({ id, sent, received }) => {
    const request = requests.get(id)
    if (request === undefined || !(request.end > 0) || received === 0) return []
    const { start, end } = request
    const total = received - sent
    const divided: Divided = { total }
    const add = (part: Part, ms: number) => { divided[part] = (divided[part] ?? 0) + ms }
    /** Adds the time in which the thread runs this request, or others that delay it. */
    const addRunning = (window: Interval, busy: Part, idle: Part) => {
      const time = timeline.divide(window)
      add('collection', time.collection)
      add('core', time.core)
      add(busy, time.busy)
      add(idle, time.idle)
    }
    /** Adds the time of something else. At its end, the thread may still run the callbacks before it. */
    const addWaiting = (window: Interval, part: Part) => {
      const tick = Math.max(window.start, timeline.tickStart(window.end))
      add(part, tick - window.start)
      addRunning({ start: tick, end: window.end }, 'own', part)
    }

    addRunning({ start: Math.min(sent, start), end: start }, 'others', 'way')
    let at = start
    const own = (statements.get(id) ?? []).filter((each) => each.start >= start && each.end <= end)
    for (const statement of own.toSorted((a, b) => a.start - b.start)) {
      const kind = kindOf(statement.name)
      const window = { start: at, end: Math.max(at, statement.start) }
      const waiting = timeline.inFlight(kind, window)
      add(kind === 'token' ? 'token' : 'batch', lengthOf(waiting))
      for (const rest of outside(window, waiting)) addRunning(rest, 'own', 'own')
      addWaiting(statement, kind === 'token' ? 'token' : kind === 'page' ? 'list' : 'write')
      at = statement.end
    }
    if (isService) addRunning({ start: at, end }, 'own', 'own')
    else addWaiting({ start, end }, 'unknown')
    add('back', Math.max(0, received - end))
    return [divided]
  })
  return { requests: divided, busy: timeline.divide(whole).busy }
}

/** Returns the rest of a window without some sorted parts of it. */
function outside ({ start, end }: Interval, parts: Interval[]): Interval[] {
  return [...parts, { start: end, end }].map((part, index) =>
    ({ start: parts[index - 1]?.end ?? start, end: part.start }))
}

/** Returns the mean time of each part in ms, for the slowest requests or for all. */
export function meanOf (requests: Divided[], fraction: number): Divided {
  const sorted = requests.toSorted((a, b) => b.total - a.total)
  const slowest = sorted.slice(0, Math.ceil(requests.length * fraction))
  const mean = (part: Part | 'total') =>
    slowest.reduce((sum, request) => sum + (request[part] ?? 0), 0) / slowest.length
  const names = Object.keys(parts) as Part[]
  return { total: mean('total'), ...Object.fromEntries(names.map((part) => [part, mean(part)])) }
}
