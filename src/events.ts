// What goes on inside, told to whoever listens: metrics and traces. With nobody listening it costs a look
// at a flag.
import { AsyncLocalStorage } from 'node:async_hooks'
import { channel } from 'node:diagnostics_channel'

export interface Events<Event> {
  readonly hasSubscribers: boolean
  publish (event: Event): void
  subscribe (listener: (event: Event) => void): void
  unsubscribe (listener: (event: Event) => void): void
}

const events = <Event>(name: string) => channel(`plant-store.${name}`) as unknown as Events<Event>

export interface StatementEvent {
  /** Of the statement. */
  name: string
  /** By performance.now(). */
  startedAt: number
  /** Why it failed, if it did. */
  error?: unknown
  /** What `origin` held when it was sent: a request's, or those of all requests that it serves. */
  origin: unknown
}

/** A statement that has been answered or has failed. */
export const statementEvents = events<StatementEvent>('statement')

/** Requests that go together as one batch. */
export const batchEvents = events<{ name: string, items: number }>('batch')

/** What became of a connection to the database. `timed_out`: closed for its silence, statements waiting. */
export const connectionEvents = events<{ event: 'opened' | 'lost' | 'timed_out' }>('connection')

/** A token that came with a request, known from a moment ago or looked up. */
export const tokenEvents = events<{ hit: boolean }>('token')

/** What is being done for whom: set for each request by traces, and by batches for those they serve. */
export const origin = new AsyncLocalStorage<unknown>()
