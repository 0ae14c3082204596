// Classifies errors of PostgreSQL and of its driver.
import pg from 'pg'
import { ApiError, errors, type ErrorDefinition } from '../errors.ts'

// SQLSTATE classes and codes of problems that lie in the server, not in the statement.
const unavailable = new RegExp('^(' + [
  '08', // connection exceptions, also from a pooler
  '25006', // a standby, or a server that was made read-only
  '25P04', // transaction_timeout
  '28', '3D000', // no access to the server or the database
  '40', // deadlock or serialization failure
  '53', '55P03', '57', '58', // out of resources, lock timeout, cancelled or shutting down, system error
  '26000', '42P05', '42P01' // prepared statement missing or duplicate; table missing (before a migration)
].join('|') + ')')

/** SQLSTATEs that match `unavailable` but become a more specific error than DATABASE_UNAVAILABLE. */
const specificErrors: Record<string, ErrorDefinition> = {
  25006: errors.DATABASE_READ_ONLY,
  '25P04': errors.DATABASE_SLOW,
  '55P03': errors.DATABASE_SLOW,
  57014: errors.DATABASE_SLOW,
  53100: errors.DATABASE_FULL
}

const sqlStateOf = (error: unknown) => error instanceof pg.DatabaseError ? error.code as string : ''

/** Whether the server closes the connection. */
export const isFatal = (error: unknown): boolean => /^(57P|25P04)/.test(sqlStateOf(error))

export const isReadOnly = (error: unknown): boolean => sqlStateOf(error) === '25006'

/** Whether the server has no valid plan for a statement. If so, the server has not run the statement. */
export const isStalePlan = (error: unknown): boolean =>
  sqlStateOf(error) === '26000' || (error as pg.DatabaseError).routine === 'RevalidateCachedQuery'

/** If the statement is at fault, returns the error. Otherwise returns a 503, with other errors as cause. */
export function toDatabaseError (cause: unknown): unknown {
  const state = sqlStateOf(cause)
  if (cause instanceof ApiError || (state !== '' && !unavailable.test(state))) return cause
  return new ApiError(specificErrors[state] ?? errors.DATABASE_UNAVAILABLE, { cause })
}

/** Always returns a 503: no statement was sent that could be at fault. */
export function toConnectError (cause: unknown): ApiError {
  const error = toDatabaseError(cause)
  return error instanceof ApiError ? error : new ApiError(errors.DATABASE_UNAVAILABLE, { cause })
}

/** Whether the server has confirmed a roll-back: the statement is at fault, or had a deadlock or timeout. */
export const wasRolledBack = (error: unknown): boolean => error instanceof pg.DatabaseError ||
  (error instanceof ApiError && /^(40001|40P01|55P03|57014)$/.test(sqlStateOf(error.cause)))
