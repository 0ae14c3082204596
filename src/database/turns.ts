// So many statements on a connection at a time; the others wait for their turn, fair among owners.
import { abandoned, overloaded } from '../errors.ts'
import { origin } from '../events.ts'
import { FairQueue } from './fair.ts'
import type { Lane } from './lane.ts'

export interface TurnsOptions {
  /** How many statements may be sent before the first of them is answered. */
  atOnce: number
  /** How many may be sent or wait before others are refused. */
  maxWaiting: number
  /** Whose turn may come now; everybody's without it. Looked at again every `tickMs`. */
  mayGo?: (owner: string) => boolean
}

export interface Turns {
  /**
   * Does the work, which sends one statement on the connection, when it is its turn. Past
   * `maxWaiting` one is rejected with OVERLOADED: of this owner, or of one who has more waiting.
   */
  run<Result> (work: () => Promise<Result>, waiter: Waiter): Promise<Result>

  /** How many statements were sent and are not answered, or wait for their turn. */
  waiting (): number

  /** To be called every `tickMs`: a connection that is closed for its silence makes room, too. */
  tick (): void
}

export interface Waiter {
  /** Absent: nobody in particular. */
  owner?: string
  /** Since when it waits, if it has waited elsewhere before: all its waits together have one bound. */
  since?: number | undefined
  /** For a request that is being answered already. It is never refused: the answer would break off. */
  isUnderWay?: boolean
  /** Once it is destroyed nothing is sent any more. */
  answer?: { readonly destroyed: boolean } | undefined
}

/** As long as a statement may take by default: behind a server that hangs an answer is due. */
export const maxWaitMs = 5000

export function takeTurns (lane: Lane, { atOnce, maxWaiting, mayGo = () => true }: TurnsOptions): Turns {
  const queue = new FairQueue<{ begin: () => void, refuse: () => void }>(mayGo)

  function next (): void {
    while (lane.waiting() < atOnce) {
      const waiting = queue.takeNext()
      if (waiting === undefined) return
      waiting.begin()
    }
  }

  function begin<Result> (work: () => Promise<Result>): Promise<Result> {
    const answer = work()
    answer.then(next, next)
    return answer
  }

  const waiting = () => lane.waiting() + queue.weight

  /** Whether there is room for one more, if need be after refusing another's. */
  function makeRoom (owner: string): boolean {
    if (waiting() < maxWaiting) return true
    const other = queue.takeFromHeaviest(owner, 1)
    other?.refuse()
    return other !== undefined
  }

  return {
    run<Result> (work: () => Promise<Result>, waiter: Waiter): Promise<Result> {
      const { owner = '', isUnderWay = false, since, answer } = waiter
      if (!isUnderWay && !makeRoom(owner)) return Promise.reject(overloaded)
      if (lane.waiting() < atOnce && queue.isIdle() && mayGo(owner)) return begin(work)
      return new Promise((resolve, reject) => {
        // Whoever makes room begins it: on behalf of the one who waited.
        const from = origin.getStore()
        const beginNow = () => {
          if (answer?.destroyed) reject(abandoned)
          else resolve(origin.run(from, begin<Result>, work))
        }
        const item = { begin: beginNow, refuse: () => reject(overloaded) }
        queue.add(owner, item, isUnderWay ? 0 : 1, since)
      })
    },

    waiting,

    tick () {
      for (const { refuse } of queue.takeOlderThan(maxWaitMs)) refuse()
      next()
    }
  }
}
