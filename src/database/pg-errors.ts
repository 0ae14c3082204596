// Classifies errors of PostgreSQL and of its driver.
import pg from 'pg'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'

// SQLSTATE classes and codes that describe the state of the server and not the statement.
const unavailable = new RegExp('^(' + [
  '08', // connection exceptions, also from a pooler
  '25006', // a standby, or a server that was made read-only
  '28', '3D000', // no access to the server or the database
  '40', // deadlock or serialization failure: rolled back, can be retried
  '53', '57', '58', // out of resources, cancelled or shutting down, system error
  '26000', '42P05', '42P01' // missing tables (before a migration), and what pipelined statements get then
].join('|') + ')')

/** Somebody else's lock or the statement's own duration was in the way: rolled back. */
const rolledBack = /^(40001|40P01|57014)$/

/** Errors with numbers of their own, since the server is reachable. */
const numbered: Record<string, ErrorDefinition> = { 57014: errors.DATABASE_SLOW, 53100: errors.DATABASE_FULL }

// A server announces that it closes a connection. One that became read-only would leave it open.
const fatal = /^(57P|25006)/

const sqlStateOf = (error: unknown) => error instanceof pg.DatabaseError ? error.code as string : undefined

/** Whether the connection can't be used any more. */
export const isFatal = (error: unknown): boolean => fatal.test(sqlStateOf(error) ?? '')

class DatabaseUnavailable extends ApiError {
  /** The server executed the statement and rolled it back. */
  readonly wasRolledBack: boolean

  constructor (cause: unknown) {
    const state = sqlStateOf(cause) ?? ''
    const otherwise = isReadTimeout(cause) ? errors.DATABASE_SLOW : errors.DATABASE_UNAVAILABLE
    super(numbered[state] ?? otherwise, { cause })
    this.wasRolledBack = rolledBack.test(state)
  }
}

/** Whether the server no longer has a valid plan of a prepared statement: the statement was not executed. */
export const isStalePlan = (error: unknown): boolean =>
  isNotPrepared(error) ||
  (sqlStateOf(error) === '0A000' && (error as pg.DatabaseError).routine === 'RevalidateCachedQuery')

/** Whether pg itself reports that no result came within `query_timeout`. */
export const isReadTimeout = (error: unknown): boolean => (error as Error).message === 'Query read timeout'

/** Whether the server doesn't know a prepared statement by its name. */
export const isNotPrepared = (error: unknown): boolean => sqlStateOf(error) === '26000'

/** Errors about the statement itself stay as they are. Every other error becomes a 503 with its cause. */
export function toDatabaseError (error: unknown): unknown {
  const state = sqlStateOf(error)
  return state === undefined || unavailable.test(state) ? new DatabaseUnavailable(error) : error
}

/** Whether the statement was not executed or was rolled back: nothing was written. */
export const wasRolledBack = (error: unknown): boolean =>
  error instanceof DatabaseUnavailable ? error.wasRolledBack : error instanceof pg.DatabaseError
