// Classifies errors of PostgreSQL and of its driver.
import pg from 'pg'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'

// SQLSTATE classes and codes that describe the state of the server, not an error of the statement.
const unavailable = new RegExp('^(' + [
  '08', // connection exceptions, also from a pooler
  '25006', // a standby, or a server that was made read-only
  '28', '3D000', // no access to the server or the database
  '40', // deadlock or serialization failure
  '53', '57', '58', // out of resources, cancelled or shutting down, system error
  '26000', '42P05', '42P01' // prepared statement missing or duplicate; table missing (before a migration)
].join('|') + ')')

/** Deadlocks, serialization failures and timeouts. Another transaction may be the cause. */
const rolledBack = /^(40001|40P01|57014)$/

/** The SQLSTATEs of `unavailable` that have an error of their own. The others become DATABASE_UNAVAILABLE. */
const numbered: Record<string, ErrorDefinition> = { 57014: errors.DATABASE_SLOW, 53100: errors.DATABASE_FULL }

const sqlStateOf = (error: unknown) => error instanceof pg.DatabaseError ? error.code as string : ''

/** Whether the connection must be replaced: the server is closing it or has become read-only. */
export const isFatal = (error: unknown): boolean => /^(57P|25006)/.test(sqlStateOf(error))

export const isReadTimeout = (error: unknown): boolean => (error as Error).message === 'Query read timeout'

export const isNotPrepared = (error: unknown): boolean => sqlStateOf(error) === '26000'

/** Whether the server has no valid plan for a prepared statement. It has not executed the statement then. */
export const isStalePlan = (error: unknown): boolean =>
  isNotPrepared(error) ||
  (sqlStateOf(error) === '0A000' && (error as pg.DatabaseError).routine === 'RevalidateCachedQuery')

/** Returns errors about the statement itself unchanged. Any other error becomes the cause of a 503. */
export function toDatabaseError (cause: unknown): unknown {
  const state = sqlStateOf(cause)
  if (state !== '' && !unavailable.test(state)) return cause
  const otherwise = isReadTimeout(cause) ? errors.DATABASE_SLOW : errors.DATABASE_UNAVAILABLE
  return new ApiError(numbered[state] ?? otherwise, { cause })
}

/** Whether the server has reported that it rolled the statement back or did not execute it. */
export const wasRolledBack = (error: unknown): boolean =>
  error instanceof pg.DatabaseError || (error instanceof ApiError && rolledBack.test(sqlStateOf(error.cause)))
