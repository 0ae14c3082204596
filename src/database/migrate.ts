// Migrates the database up to the newest migration, or undoes the newest migration.
import { readdir, readFile } from 'node:fs/promises'
import { join, parse } from 'node:path'
import type pg from 'pg'
import { durabilitySettings } from '../events.ts'
import { openClient } from './connector.ts'

const oldestMajorVersion = 15
const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'
const lockTimeoutMs = 30_000
const migrationTimeoutMs = 600_000
const queryTimeoutMs = 5000
// Selects the columns of all tables except system tables. A column that changes its type gets another id.
const columnsOfTables = `
  select attrelid::regclass::text as name, format('%s %s %s', attrelid, attnum, atttypid) as id
  from pg_attribute join pg_class on pg_class.oid = attrelid
  where relkind in ('r', 'p') and attnum > 0 and not attisdropped
    and relnamespace not in ('pg_catalog'::regnamespace, 'information_schema'::regnamespace)`
const workerMessage = 'This server is a worker of Citus. ' +
  'Run migrate on the coordinator, and serve here with MIGRATE=off.'

/** Reads the version as a number (180004 is 18.4), the encoding, and the durability settings that are off. */
export const serverStatement = {
  name: 'server',
  text: `select current_setting('server_version_num') as version,
      current_setting('server_encoding') as encoding, string_agg(name, ' ' order by name) as off
    from pg_settings where setting = 'off' and name in ('${durabilitySettings.join("', '")}')`
}

/** After this error do not retry: the operator must act first. */
export class UnsupportedServer extends Error {}

/** Returns the version in the form `18.4`. Throws UnsupportedServer for an old server or another encoding. */
export function supportedVersion (number: unknown, encoding: unknown): string {
  if (encoding !== 'UTF8') {
    throw new UnsupportedServer(`The encoding of the database is ${encoding}. The service needs UTF8.`)
  }
  const [major, minor] = [Math.floor(Number(number) / 10_000), Number(number) % 10_000]
  if (major >= oldestMajorVersion) return `${major}.${minor}`
  throw new UnsupportedServer(
    `PostgreSQL ${major}.${minor} is too old. The service needs PostgreSQL ${oldestMajorVersion} or later.`)
}

/**
 * Runs all missing migrations in one transaction, or undoes the newest. Waits while another instance
 * migrates. Deletes data only if `withData` is set. Returns the names of the migrations that ran.
 */
export async function migrate (url: string, direction: 'up' | 'down', withData = false): Promise<string[]> {
  const client = await openClient(url, {
    lock_timeout: lockTimeoutMs,
    statement_timeout: migrationTimeoutMs,
    query_timeout: migrationTimeoutMs
  })
  try {
    const [server] = await query(client, serverStatement.text)
    supportedVersion(server?.version, server?.encoding)
    const done = await migrationsDone(client)
    if (direction === 'up' && (await readMigrations()).every((name) => done.includes(name))) return []
    if (await isWorker(client)) throw new UnsupportedServer(workerMessage)
    if (direction === 'down' && !withData) await refuseDataLoss(client, done.at(-1))
    // Load the library on demand, to save start time and 10 MiB of memory.
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
    await client.end()
  }
}

async function query (client: pg.Client, text: string): Promise<Array<Record<string, unknown>>> {
  return (await client.query({ text, query_timeout: queryTimeoutMs } as pg.QueryConfig)).rows
}

/** Whether the server is a worker of Citus. A worker gets its tables from the coordinator. */
async function isWorker (client: pg.Client): Promise<boolean> {
  const [citus] = await query(client, "select to_regclass('pg_dist_local_group') as groups")
  if (citus?.groups === null) return false
  const [node] = await query(client, 'select groupid from pg_dist_local_group')
  return node?.groupid !== 0
}

async function migrationsDone (client: pg.Client): Promise<unknown[]> {
  const [table] = await query(client, `select to_regclass('${migrationsTable}') as name`)
  if (table?.name === null) return []
  const rows = await query(client, `select name from ${migrationsTable} order by run_on, id`)
  return rows.map(({ name }) => name)
}

/** Throws if migrating down would delete data. Runs the Down section, compares columns, and rolls back. */
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
    // The lock prevents new rows until the library has migrated in the same transaction.
    await client.query(`lock table ${table} in access exclusive mode`)
    if ((await query(client, `select 1 from ${table} limit 1`)).length > 0) {
      throw new Error(`Undoing ${migration} would delete data from ${table}. Add --with-data to allow that.`)
    }
  }
}

const readMigrations = async () => (await readdir(dir)).map((file) => parse(file).name).toSorted()

export const newestMigration = async () => (await readMigrations()).at(-1) as string
