// A scripted database connection: the scheduler decides when results arrive and when the connection ends.
import type { Scheduler } from 'fast-check'
import pg from 'pg'
import type { Row } from '../../src/database/connection.ts'
import { must } from './orders.ts'

export interface Statement {
  /** The outcome of each time that the statement is sent. */
  outcomes: string[]
  /** How many turns of the scheduler each result takes. */
  turns: number
  /** The outcomes so far. */
  sent: string[]
}

const errorOf = (code: string) => Object.assign(new pg.DatabaseError(code, 0, 'error'), { code })
export const codes: Record<string, string> = { error: '23505', stale: '26000', fatal: '57P01' }

/** Has the contract of `Connection`. The scheduler decides when the next result or the end arrives. */
export class ScriptedConnection {
  readonly #s: Scheduler
  readonly #results: Array<(isLost: boolean) => void> = []
  #isStale = false
  readonly #end = Promise.withResolvers<void>()
  readonly closed = this.#end.promise
  state = 'open'
  isOpen = true
  isClosedByOwner = false

  constructor (s: Scheduler) {
    this.#s = s
  }

  get pending (): number {
    return this.#results.length
  }

  run (_: unknown, [{ sent, outcomes, turns }]: [Statement]): Promise<Row[]> {
    must(this.state === 'open' && !this.#isStale, 'no statement is sent on a connection that ends')
    const number = sent.push('in flight') - 1
    const outcome = outcomes[number] ?? 'rows'
    const arrive = (left: number): Promise<void> => this.#s.schedule(Promise.resolve(), outcome)
      .then(() => left > 1 ? arrive(left - 1) : this.#results.shift()?.(false))
    arrive(turns)
    return new Promise((resolve, reject) => this.#results.push((isLost) => {
      sent[number] = isLost ? 'lost' : outcome
      this.#isStale ||= outcome === 'stale'
      if (!this.isOpen || outcome === 'fatal') this.#stop()
      if (sent[number] === 'rows') resolve([[String(number)]])
      else reject(isLost ? new Error('lost') : errorOf(codes[outcome] as string))
    }))
  }

  check (): boolean {
    return this.pending > 0
  }

  close (): void {
    this.isClosedByOwner = true
    this.#stop()
  }

  #stop (): void {
    this.isOpen = false
    if (this.pending === 0 && this.state === 'open') this.lose()
  }

  lose (): void {
    this.isOpen = false
    this.state = 'ending'
    this.#s.schedule(Promise.resolve(), 'end').then(() => {
      this.state = 'closed'
      for (const result of this.#results.splice(0)) result(true)
      this.#end.resolve()
    })
  }
}
