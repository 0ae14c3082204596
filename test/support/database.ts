import { randomBytes } from 'node:crypto'
import pg from 'pg'
import type { Test } from 'tap'

/** The pools of the server and of the databases that `createDatabase` creates: a connection takes 20 ms. */
const pools = new Map<string, pg.Pool>()

const openPool = (url: string) =>
  // The server ends the connections of a dropped database.
  pools.set(url, new pg.Pool({ connectionString: url, allowExitOnIdle: true }).on('error', () => {}))

export async function sql (
  url: string, text: string, values?: unknown[]
): Promise<Array<Record<string, unknown>>> {
  await using stack = new AsyncDisposableStack()
  const session = pools.get(url) ?? await openSession({ teardown: (end) => stack.defer(end) }, url)
  return (await session.query(text, values)).rows
}

/** Opens a connection of its own, and runs `text`. Closes the connection after the test. */
export async function openSession (t: Pick<Test, 'teardown'>, url: string, text = ''): Promise<pg.Client> {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query(text)
  return client
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
    throw new Error('Run `npm test`, or one file by `npm test -- --disable-coverage test/…`')
  }
  if (!pools.has(serverUrl)) openPool(serverUrl)
  const name = `test_${randomBytes(8).toString('hex')}`
  // The default strategy also writes the copied data to the WAL, and is slower than file_copy.
  await sql(serverUrl, `create database ${name} template ${template} strategy file_copy`)
  t.teardown(() => sql(serverUrl, `drop database ${name} with (force)`))
  const { href } = Object.assign(new URL(serverUrl), { pathname: `/${name}` })
  openPool(href)
  return href
}
