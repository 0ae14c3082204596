import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Test } from 'tap'

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
 * Finds the processes that wait for a lock in the current database. In pg_locks, a wait for a row names no
 * database, but other locks of the process do. pg_stat_activity is no help: a transaction that
 * reads it twice gets the same rows.
 */
export const waitingForLocks = `select pid from pg_locks where not granted and pid in (
  select pid from pg_locks where database = (select oid from pg_database where datname = current_database()))`

/** Copies a template database, by default one with all migrations. Drops the copy after the test. */
export async function createDatabase (t: Test, { template = 'plants_template' } = {}): Promise<string> {
  const serverUrl = process.env.TEST_DATABASE_URL
  if (serverUrl === undefined) {
    throw new Error(
      'Run tests by `npm test`, or one file by `npm test -- --disable-coverage test/…`: they need a database.'
    )
  }
  const name = `test_${randomBytes(8).toString('hex')}`
  // The default strategy also writes the copied data to the WAL, and is slower than file_copy.
  await sql(serverUrl, `create database ${name} template ${template} strategy file_copy`)
  t.teardown(() => sql(serverUrl, `drop database ${name} with (force)`))
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  return url.href
}
