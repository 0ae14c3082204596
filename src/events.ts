// Events for metrics and traces. Without a listener an event costs one test of `hasSubscribers`.
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
  name: string
  /** By performance.now(). */
  startedAt: number
  error?: unknown
  /** The value of `requestContext` when the statement was sent. */
  requestContext: unknown
}

/** A statement that ended. */
export const statementEvents = events<StatementEvent>('statement')

/** Items that share a statement. */
export const batchEvents = events<{ name: string, items: number }>('batch')

/** `timed_out`: the connection was closed because it was unresponsive. */
export const connectionEvents = events<{ event: 'opened' | 'lost' | 'timed_out' }>('connection')

/** A look-up in the token cache. */
export const tokenEvents = events<{ hit: boolean }>('token')

/** Why a JWT is rejected. */
export const jwtRejections = ['malformed', 'algorithm', 'unknown_key', 'signature', 'type', 'issuer',
  'audience', 'not_yet_valid', 'expired', 'user'] as const
export type JwtRejection = (typeof jwtRejections)[number]

/** A JWT that was checked: `cached` without a check of its signature. */
export const jwtEvents = events<{ result: 'verified' | 'cached' | 'rejected' | 'unavailable' }>('jwt')

/** A fetch of the identity provider's keys. */
export const keyEvents = events<{ result: 'succeeded' | 'failed' }>('jwt-keys')

/** The request that the current code serves, as traces know it. In a batch: an array of all its requests. */
export const requestContext = new AsyncLocalStorage<unknown>()
