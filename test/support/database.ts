import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Test } from 'tap'

/** Runs SQL on a separate connection. */
export async function sql (
  url: string, text: string, values?: unknown[]
): Promise<Array<Record<string, unknown>>> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return (await client.query(text, values)).rows
  } finally {
    await client.end()
  }
}

/**
 * Finds the processes of this database that wait for a lock. A row lock has no database in pg_locks,
 * so the query finds the database by other locks of the process. It does not use pg_stat_activity,
 * which always shows the same snapshot within a transaction.
 */
export const waitingForLocks = `select pid from pg_locks where not granted and pid in (
  select pid from pg_locks where database = (select oid from pg_database where datname = current_database()))`

/** Copies a template, by default the one with all tables. Drops the copy when the test ends. */
export async function createDatabase (t: Test, { template = 'plants_template' } = {}): Promise<string> {
  const serverUrl = process.env.TEST_DATABASE_URL
  if (serverUrl === undefined) {
    throw new Error(
      'Run tests by `npm test`, or one file by `npm test -- --disable-coverage test/…`: they need a database.'
    )
  }
  const name = `test_${randomBytes(8).toString('hex')}`
  // The default strategy is slower, because it also writes the files to the WAL.
  await sql(serverUrl, `create database ${name} template ${template} strategy file_copy`)
  t.teardown(() => sql(serverUrl, `drop database ${name} with (force)`))
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  return url.href
}
