import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Test } from 'tap'

/** Runs SQL past the service, on a connection of its own. */
export async function sql (url: string, text: string, values?: unknown[]): Promise<Array<Record<string, unknown>>> {
  const client = new pg.Client(url)
  await client.connect()
  try {
    return (await client.query(text, values)).rows
  } finally {
    await client.end()
  }
}

/**
 * The processes of this database that wait for somebody's lock; other databases
 * of the server have theirs. A lock on a row tells no database, so it is that of
 * the process. Of pg_stat_activity a transaction would see one state only.
 */
export const waitingForLocks = `select pid from pg_locks where not granted and pid in (
  select pid from pg_locks where database = (select oid from pg_database where datname = current_database()))`

/** The URL of a fresh database, migrated unless `template` says otherwise, dropped when the test ends. */
export async function createDatabase (t: Test, { template = 'plants_template' } = {}): Promise<string> {
  const serverUrl = process.env.TEST_DATABASE_URL
  if (serverUrl === undefined) throw new Error('Run tests by `npm test`, or one file by `npm test -- --disable-coverage test/…`: they need a database.')
  const name = `test_${randomBytes(8).toString('hex')}`
  // Whose files are written but once, while the other strategy's are written to the log as well.
  await sql(serverUrl, `create database ${name} template ${template} strategy file_copy`)
  t.teardown(() => sql(serverUrl, `drop database ${name} with (force)`))
  const url = new URL(serverUrl)
  url.pathname = `/${name}`
  return url.href
}
