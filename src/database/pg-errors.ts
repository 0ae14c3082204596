// From an error of the server's or the driver's to whose fault it is.
import pg from 'pg'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'

// SQLSTATE classes and codes that tell of the server's state and not of the statement.
const unavailable = new RegExp('^(' + [
  '08', // connection exceptions, a pooler's refusals among them
  '25006', // a standby, or a server that was made read-only
  '28', '3D000', // no access to the server or the database
  '40', // deadlock or serialization failure: rolled back, may be tried again
  '53', '57', '58', // out of resources, cancelled or shutting down, system error
  '26000', '42P05', '42P01' // tables not there (yet), and what comes of that for statements sent meanwhile
].join('|') + ')')

// Of these what was in the statement's way: somebody's lock, or the time it took.
const inTheWay = /^(40001|40P01|57014)$/

// What has a number of its own, since it can be reached all the same.
const reasons: Record<string, ErrorDefinition> = { 57014: errors.DATABASE_SLOW, 53100: errors.DATABASE_FULL }

// A server that closes a connection says so before. One that takes no writes any more would leave it open.
const closing = /^(57P|25006)/

const stateOf = (error: unknown) => error instanceof pg.DatabaseError ? error.code as string : undefined

export const isFatal = (error: unknown): boolean => closing.test(stateOf(error) ?? '')

/** The server, the network or somebody's lock is at fault and not the statement. */
class DatabaseUnavailable extends ApiError {
  /** The server took the statement, and wrote nothing of it. */
  readonly wasRolledBack: boolean

  constructor (cause: unknown) {
    const state = stateOf(cause) ?? ''
    const otherwise = isReadTimeout(cause) ? errors.DATABASE_SLOW : errors.DATABASE_UNAVAILABLE
    super(reasons[state] ?? otherwise, { cause })
    this.wasRolledBack = inTheWay.test(state)
  }
}

/** Whether the server can't do what a statement asks, whatever its values are. */
export const isNotSupported = (error: unknown): boolean => stateOf(error) === '0A000'

/** Whether pg itself says that no answer came within `query_timeout`. */
export const isReadTimeout = (error: unknown): boolean => (error as Error).message === 'Query read timeout'

/** Whether the server doesn't know a statement by its name. */
export const isNotPrepared = (error: unknown): boolean => stateOf(error) === '26000'

/** What the server says of the statement itself stays as it is. All else is a 503 that says why. */
export function toDatabaseError (error: unknown): unknown {
  const state = stateOf(error)
  return state === undefined || unavailable.test(state) ? new DatabaseUnavailable(error) : error
}

/** Whether an error says that the statement itself is at fault: the same one would fail again. */
export const isStatementError = (error: unknown): boolean => error instanceof pg.DatabaseError

/** Whether an error of `write` says that the server turned it down: for sure nothing was written. */
export const wasRolledBack = (error: unknown): boolean =>
  error instanceof DatabaseUnavailable ? error.wasRolledBack : isStatementError(error)
