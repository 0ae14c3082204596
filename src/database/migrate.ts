// Migrates the database up to the newest migration, or down by one.
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
// Also bounds the wait for an unresponsive server.
const migrationTimeoutMs = 600_000
const lookTimeoutMs = 5000
// The columns of all tables that are not the system's, each with its type. Partitioned tables have rows, too.
const columnsOfTables = `
  select attrelid::regclass::text as name, format('%s %s %s', attrelid, attnum, atttypid) as id
  from pg_attribute join pg_class on pg_class.oid = attrelid
  where relkind in ('r', 'p') and attnum > 0 and not attisdropped
    and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)`
const workerMessage = 'This server is a worker of Citus. ' +
  'Run migrate on the coordinator, and serve here with MIGRATE=off.'

export interface MigrateOptions {
  /** Whether migrating down may delete data. */
  withData?: boolean
}

/**
 * Runs all missing migrations in one transaction, or undoes the newest one. Instances that start together
 * take turns. Returns the names of the migrations that ran.
 */
export async function migrate (
  url: string, direction: 'up' | 'down', options: MigrateOptions = {}
): Promise<string[]> {
  const unavailable = (cause: unknown) => { throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause }) }
  const connectionString = await findServer(url).catch(unavailable)
  const timeouts = {
    // The library waits for another instance's migrations without a limit.
    lock_timeout: lockTimeoutMs,
    // The limit of the role may be one for requests.
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
    // Loaded on demand: it takes a quarter of the start time and 10 MiB.
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
    // Also releases the lock when a migration failed.
    await client.end()
  }
}

async function ask (client: Client, text: string): Promise<Array<Record<string, unknown>>> {
  return (await client.query({ text, query_timeout: lookTimeoutMs } as QueryConfig)).rows
}

/** Returns whether the server is a worker of Citus. The coordinator creates the tables of workers. */
async function isWorker (client: Client): Promise<boolean> {
  const [citus] = await ask(client, "select to_regclass('pg_dist_local_group') is not null as is_there")
  if (!citus?.is_there) return false
  const [node] = await ask(client, 'select groupid from pg_dist_local_group')
  return node?.groupid !== 0
}

/** Returns the names of the migrations that ran, the oldest first. */
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
 * Throws when migrating down would delete data: it tries the Down section and compares the columns. The
 * transaction stays open for the library, so that its locks keep other rows from being added meanwhile.
 */
async function refuseDataLoss (client: Client, migration: string | undefined): Promise<void> {
  const text = await readFile(join(dir, `${migration}.sql`), 'utf8').catch(() => '')
  const [, down = ''] = text.split('-- Down Migration')
  await client.query('begin; savepoint before_down')
  const columns = await ask(client, columnsOfTables)
  await client.query(down)
  const kept = new Set((await ask(client, columnsOfTables)).map(({ id }) => id))
  await client.query('rollback to before_down')
  const tables = new Set(columns.filter(({ id }) => !kept.has(id)).map(({ name }) => name))
  for (const table of tables) {
    await client.query(`lock table ${table} in access exclusive mode`)
    const [row] = await ask(client, `select exists (select 1 from ${table}) as found`)
    if (row?.found) {
      throw new Error(`Undoing ${migration} would delete data from ${table}. Add --with-data to allow that.`)
    }
  }
}

/** Returns the name of the newest migration in migrations/. */
export async function newestMigration (): Promise<string> {
  return (await readdir(dir)).map((file) => parse(file).name).toSorted().at(-1) as string
}
