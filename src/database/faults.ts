// From an error of the server's or the driver's to whose fault it is.
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'

// SQLSTATE classes and codes that tell of the server's state and not of the statement.
const unavailable = new RegExp('^(' + [
  '08', // connection exceptions, a pooler's refusals among them
  '25006', // a standby
  '28', '3D000', // no access to the server or the database
  '40', // deadlock or serialization failure: rolled back, may be tried again
  '53', '57', '58', // out of resources, cancelled or shutting down, system error
  '26000', '42P05', '42P01' // tables not there (yet), and what comes of that for statements sent meanwhile
].join('|') + ')')

// A server that ends a connection says so before it closes it.
export const endsConnection = (error?: Error) => error instanceof pg.DatabaseError && /^57P/.test(error.code as string)

const isOfStatement = (error: unknown) => error instanceof pg.DatabaseError && !unavailable.test(error.code as string)

export function toApiError (error: unknown): unknown {
  return isOfStatement(error) || error instanceof ApiError ? error : new ApiError(errors.DATABASE_UNAVAILABLE, { cause: error })
}

/** Whether an error of `write` says that the statement, and not the server, is at fault or in somebody's way: for sure nothing was written. */
export function wasTurnedDown (error: unknown): boolean {
  const reason = error instanceof ApiError ? error.cause : error
  return isOfStatement(reason) || (reason instanceof pg.DatabaseError && /^(40001|40P01|57014)$/.test(reason.code as string))
}
