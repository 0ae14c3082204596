// Events for metrics, traces and background jobs. An event without subscribers costs almost no time.
import { AsyncLocalStorage } from 'node:async_hooks'
import { channel } from 'node:diagnostics_channel'

export interface Events<Event> {
  publish (event: Event): void
  subscribe (listener: (event: Event) => void): void
  unsubscribe (listener: (event: Event) => void): void
}

const events = <Event>(name: string): Events<Event> => channel(`plant-store.${name}`) as Events<Event>

export interface StatementEvent {
  name: string
  /** A time of `performance.now()`. */
  startedAt: number
  error?: unknown
  /** The value of `requestContext` when the statement was sent. */
  requestContext: unknown
}

export const statementEvents = events<StatementEvent>('statement')

/** Published when a batch is sent. */
export const batchEvents = events<{ name: string, items: number }>('batch')

export const connectionOutcomes = ['opened', 'failed', 'lost', 'timed_out'] as const

/** Published when a database connection opens, fails to open, is lost, or is unresponsive (`timed_out`). */
export const connectionEvents =
  events<{ event: (typeof connectionOutcomes)[number], error?: unknown }>('connection')

/** While one of these settings of PostgreSQL is off, a crash may lose acknowledged writes. */
export const durabilitySettings = ['fsync', 'full_page_writes', 'synchronous_commit'] as const

/** Published when the service is ready. */
export const durabilityEvents = events<{ off: string[] }>('durability')

export const tokenEvents = events<{ hit: boolean }>('token')

/** Published for each look-up that finds an active token. All uses of a cached token follow within 4 s. */
export const tokenUseEvents = events<{ hash: string }>('token-use')

export const jwtRejections = ['malformed', 'algorithm', 'unknown_key', 'signature', 'type', 'issuer',
  'audience', 'not_yet_valid', 'expired', 'user'] as const
export type JwtRejection = (typeof jwtRejections)[number]

/** Published for each check of a well-formed JWT. `cached`: needs no new verification. */
export const jwtEvents = events<{ result: 'verified' | 'cached' | 'rejected' | 'unavailable' }>('jwt')

/** Published after each fetch of the identity provider's keys. */
export const keyEvents = events<{ result: 'succeeded' | 'failed' }>('jwt-keys')

/** `failed`: an export failed. `dropped`: the queue was full, or the collector rejected some spans. */
export const traceFaults = ['failed', 'dropped'] as const

export const traceFaultEvents = events<{ kind: (typeof traceFaults)[number] }>('trace-fault')

/** The span of the current request. In a batch: an array with the spans of all requests in the batch. */
export const requestContext = new AsyncLocalStorage<unknown>()
