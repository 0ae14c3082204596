// Migrates the database up to the newest migration, or down by one.
import { readdir, readFile } from 'node:fs/promises'
import { join, parse } from 'node:path'
import pg from 'pg'
import { ApiError, errors } from '../errors.ts'
import { findServer } from './connector.ts'
import { supportedVersion, UnsupportedServer, versionStatement } from './version.ts'

const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'
const connectTimeoutMs = 3000
const lockTimeoutMs = 30_000
const migrationTimeoutMs = 600_000
const queryTimeoutMs = 5000
// The columns of all tables that are not the system's, each with its type. Partitioned tables have rows, too.
const columnsOfTables = `
  select attrelid::regclass::text as name, format('%s %s %s', attrelid, attnum, atttypid) as id
  from pg_attribute join pg_class on pg_class.oid = attrelid
  where relkind in ('r', 'p') and attnum > 0 and not attisdropped
    and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)`
const workerMessage = 'This server is a worker of Citus. ' +
  'Run migrate on the coordinator, and serve here with MIGRATE=off.'

const unavailable = (cause: unknown) => { throw new ApiError(errors.DATABASE_UNAVAILABLE, { cause }) }

/**
 * Runs all missing migrations in one transaction, or undoes the newest one; `withData` allows that to delete
 * data. Instances that start together take turns. Returns the names of the migrations that ran.
 */
export async function migrate (url: string, direction: 'up' | 'down', withData = false): Promise<string[]> {
  const client = new pg.Client({
    connectionString: await findServer(url).catch(unavailable),
    connectionTimeoutMillis: connectTimeoutMs,
    // Bounds the wait for another instance's migrations.
    lock_timeout: lockTimeoutMs,
    // The limit of the role may be one for requests.
    statement_timeout: migrationTimeoutMs,
    query_timeout: migrationTimeoutMs
  })
  // An unhandled 'error' event would end the process. Pending queries are rejected separately.
  client.on('error', () => {})
  try {
    await client.connect().catch(unavailable)
    const [server] = await query(client, versionStatement.text)
    supportedVersion(server?.current_setting)
    const done = await migrationsDone(client)
    if (direction === 'up' && await isUpToDate(done)) return []
    if (await isWorker(client)) throw new UnsupportedServer(workerMessage)
    if (direction === 'down' && !withData) await refuseDataLoss(client, done.at(-1))
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

async function query (client: pg.Client, text: string): Promise<Array<Record<string, unknown>>> {
  return (await client.query({ text, query_timeout: queryTimeoutMs } as pg.QueryConfig)).rows
}

/** Returns whether the server is a worker of Citus. The coordinator creates the tables of workers. */
async function isWorker (client: pg.Client): Promise<boolean> {
  const [citus] = await query(client, "select to_regclass('pg_dist_local_group') as groups")
  if (citus?.groups === null) return false
  const [node] = await query(client, 'select groupid from pg_dist_local_group')
  return node?.groupid !== 0
}

/** Returns the names of the migrations that ran, the oldest first. */
async function migrationsDone (client: pg.Client): Promise<unknown[]> {
  const [table] = await query(client, `select to_regclass('${migrationsTable}') as name`)
  if (table?.name === null) return []
  const rows = await query(client, `select name from ${migrationsTable} order by run_on, id`)
  return rows.map(({ name }) => name)
}

async function isUpToDate (done: unknown[]): Promise<boolean> {
  return (await readdir(dir)).every((file) => done.includes(parse(file).name))
}

/**
 * Throws when migrating down would delete data: it tries the Down section and compares the columns. The
 * transaction stays open for the library, so that its locks keep other rows from being added meanwhile.
 */
async function refuseDataLoss (client: pg.Client, migration: unknown): Promise<void> {
  const text = await readFile(join(dir, `${migration}.sql`), 'utf8').catch(() => '')
  const [, down = ''] = text.split('-- Down Migration')
  await client.query('begin; savepoint before_down')
  const columns = await query(client, columnsOfTables)
  await client.query(down)
  const kept = new Set((await query(client, columnsOfTables)).map(({ id }) => id))
  await client.query('rollback to before_down')
  const tables = new Set(columns.filter(({ id }) => !kept.has(id)).map(({ name }) => name))
  for (const table of tables) {
    await client.query(`lock table ${table} in access exclusive mode`)
    if ((await query(client, `select from ${table} limit 1`)).length === 0) continue
    throw new Error(`Undoing ${migration} would delete data from ${table}. Add --with-data to allow that.`)
  }
}

/** Returns the name of the newest migration in migrations/. */
export async function newestMigration (): Promise<string> {
  return (await readdir(dir)).map((file) => parse(file).name).toSorted().at(-1) as string
}
