// The tables, brought to where this version of the program wants them, or one step back.
import { readdir, readFile } from 'node:fs/promises'
import { join, parse } from 'node:path'
import type { Client, QueryConfig } from 'pg'
import { ApiError, errors } from '../errors.ts'
import { createClient } from './client.ts'
import { findServer } from './connector.ts'
import { supportedVersion, UnsupportedServer, versionStatement } from './version.ts'

const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'
const lockTimeoutMs = 30_000
// Also bounds what a server that has fallen silent is waited for.
const migrationTimeoutMs = 600_000
const lookTimeoutMs = 5000
const workerMessage = 'This server is a worker of Citus: ' +
  'run migrate on the coordinator, and serve here with MIGRATE=off.'

export interface MigrateOptions {
  /** Whether a step back may take rows with it. */
  withData?: boolean
}

/**
 * Brings the schema up to date, or takes back the newest migration. All or
 * nothing, and one at a time however many instances start together: the others
 * wait, and find it done. Returns the names of the migrations it ran.
 */
export async function migrate (
  url: string, direction: 'up' | 'down', options: MigrateOptions = {}
): Promise<string[]> {
  const unavailable = (cause: unknown) => { throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause }) }
  const connectionString = await findServer(url).catch(unavailable)
  // Bounds the wait for another instance's migrations, which the library does not.
  const timeouts = {
    lock_timeout: lockTimeoutMs,
    // The role's own may be meant for requests.
    statement_timeout: migrationTimeoutMs,
    query_timeout: migrationTimeoutMs
  }
  const client = createClient({ connectionString, ...timeouts })
  try {
    await client.connect().catch(unavailable)
    const [server] = await ask(client, versionStatement.text)
    supportedVersion(server?.current_setting)
    const done = await migrationsDone(client)
    if (direction === 'up' && await isUpToDate(done)) return []
    if (await isWorker(client)) throw new UnsupportedServer(workerMessage)
    if (direction === 'down' && !options.withData) await refuseDataLoss(client, done.at(-1))
    // Loaded when there is something to do: it takes a quarter of the time to start, and 10 MiB.
    const { runner } = await import('node-pg-migrate')
    const ran = await runner({
      dbClient: client,
      dir,
      migrationsTable,
      direction,
      count: direction === 'up' ? Infinity : 1,
      advisoryLockMode: 'wait',
      singleTransaction: true,
      log: () => {}
    })
    return ran.map(({ name }) => name)
  } finally {
    // Also gives back the lock when a migration failed.
    await client.end()
  }
}

async function ask (client: Client, text: string): Promise<Array<Record<string, unknown>>> {
  return (await client.query({ text, query_timeout: lookTimeoutMs } as QueryConfig)).rows
}

/** Whether it only has parts of tables that another server, Citus' coordinator, tells it to make. */
async function isWorker (client: Client): Promise<boolean> {
  const [citus] = await ask(client, "select to_regclass('pg_dist_local_group') is not null as is_there")
  if (!citus?.is_there) return false
  const [node] = await ask(client, 'select groupid from pg_dist_local_group')
  return node?.groupid !== 0
}

/** Oldest first. */
async function migrationsDone (client: Client): Promise<string[]> {
  const [table] = await ask(client, `select to_regclass('${migrationsTable}') is not null as exists`)
  if (!table?.exists) return []
  const rows = await ask(client, `select name from ${migrationsTable} order by run_on, id`)
  return rows.map(({ name }) => String(name))
}

async function isUpToDate (done: string[]): Promise<boolean> {
  return (await readdir(dir)).every((file) => done.includes(parse(file).name))
}

/**
 * Refuses while a table that the way down drops or alters has rows. What it
 * begins here the library goes on with and commits: nobody adds a row meanwhile.
 */
async function refuseDataLoss (client: Client, migration: string | undefined): Promise<void> {
  const text = await readFile(join(dir, `${migration}.sql`), 'utf8').catch(() => '')
  const [, down = ''] = text.split('-- Down Migration')
  await client.query('begin')
  for (const [, table] of down.matchAll(/^(?:drop|alter) table (\w+)/gm)) {
    await client.query(`lock table ${table} in access exclusive mode`)
    const [row] = await ask(client, `select exists (select from ${table}) as found`)
    if (row?.found) {
      throw new Error(`to take back ${migration} would lose what is in ${table}, see --with-data`)
    }
  }
}

/** The name of the last migration that this version of the program knows. */
export async function newestMigration (): Promise<string> {
  return (await readdir(dir)).map((file) => parse(file).name).toSorted().at(-1) as string
}
