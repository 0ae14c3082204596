// Migrates the database up to the newest migration.
import { readdir } from 'node:fs/promises'
import { join, parse } from 'node:path'
import { setTimeout as delay } from 'node:timers/promises'
import type pg from 'pg'
import { durabilitySettings } from '../telemetry-events.ts'
import { openClient } from './servers.ts'
import { toDatabaseError } from './pg-errors.ts'

const oldestMajorVersion = 15
const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'

const listNames = (condition: string) => `string_agg(name, ' ' order by name) filter (where ${condition})`

/**
 * Reads the version as a number (180004 is 18.4), the encoding, the durability settings that are off, and the
 * settings that a session lacks behind a pooler.
 */
export const serverStatement = {
  name: 'server',
  text: `select current_setting('server_version_num') as version,
      current_setting('server_encoding') as encoding,
      ${listNames(`setting = 'off' and name in ('${durabilitySettings.join("', '")}')`)} as off,
      ${listNames(`setting = boot_val and (
        name in ('enable_seqscan', 'enable_bitmapscan', 'statement_timeout')
        or name = 'client_connection_check_interval' and version() like '%linux%'
      )`)} as missing
    from pg_settings`
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

// While a migration waits for a lock, all later statements on the table wait, too. So give way to a session
// that holds a lock for long, such as pg_dump.
const [lockTimeoutMs, pauseMs] = [500, 2000]

/**
 * Runs all missing migrations in one transaction, and returns their names. While another session holds a
 * lock, tries again every few seconds, without end, and calls `onWait` before each pause.
 */
export async function migrate (url: string, onWait?: () => void): Promise<string[]> {
  for (;;) {
    try {
      return await runMissing(url)
    } catch (error) {
      if ((error as { cause?: { code?: string } }).cause?.code !== '55P03') throw error
      onWait?.()
      await delay(pauseMs)
    }
  }
}

async function runMissing (url: string): Promise<string[]> {
  const client = await openClient(url, {
    application_name: 'plant-store migrate',
    lock_timeout: lockTimeoutMs,
    statement_timeout: 600_000,
    query_timeout: 600_000
  })
  try {
    const [server] = await query(client, serverStatement.text)
    supportedVersion(server?.version, server?.encoding)
    const migrationsSchema = await findSchema(client)
    const done = await readTable(client, migrationsSchema, migrationsTable)
    if ((await readMigrations()).every((name) => done.some((row) => row.name === name))) return []
    // A worker of Citus gets its tables from the coordinator, the node of group 0.
    const [node] = await readTable(client, 'pg_dist_local_group')
    if (node !== undefined && node.groupid !== 0) {
      throw new UnsupportedServer('This server is a worker of Citus. ' +
        'Run migrate on the coordinator, and serve here with MIGRATE=off.')
    }
    // Load the library on demand, to save start time and 10 MiB of memory.
    const { runner } = await import('node-pg-migrate')
    // The library puts the stack trace of an error into the message of another one, so keep the error.
    let first: unknown
    const ran = await runner({
      dbClient: Object.assign(Object.create(client) as pg.Client, {
        query: (text: string, values?: unknown[]) => client.query(text, values).catch((error) => {
          first ??= toDatabaseError(error)
          throw error
        })
      }),
      dir,
      migrationsSchema,
      migrationsTable,
      direction: 'up',
      advisoryLockMode: 'wait',
      singleTransaction: true,
      log: () => {}
    }).catch((error) => { throw first ?? error })
    return ran.map(({ name }) => name)
  } finally {
    await client.end()
  }
}

async function query (client: pg.Client, text: string): Promise<Array<Record<string, unknown>>> {
  const result = client.query({ text, query_timeout: 5000 } as pg.QueryConfig)
  return (await result.catch((error) => { throw toDatabaseError(error) })).rows
}

/** Returns the current schema, the first one of search_path that exists. */
async function findSchema (client: pg.Client): Promise<string> {
  const [found] = await query(client, `select current_schema() as current, (select nspname from pg_class
    join pg_namespace on pg_namespace.oid = relnamespace where pg_class.oid = to_regclass('tokens')) as used`)
  const { current, used } = found as { current: string | null, used: string | null }
  if (current === null) throw new UnsupportedServer('No schema of search_path exists. Create one.')
  // node-pg-migrate does not escape these characters.
  if (/['"]/.test(current)) {
    throw new UnsupportedServer(`The schema ${current} has a quote in its name. Rename it.`)
  }
  if (used === null || used === current) return current
  // New tables would hide these.
  throw new UnsupportedServer(`The tables are in the schema ${used}, but search_path begins with ` +
    `${current}. Set search_path to one of the two.`)
}

/** Returns all rows, or none if the table is missing. */
async function readTable (client: pg.Client, ...nameParts: string[]) {
  const name = nameParts.map(client.escapeIdentifier).join('.')
  const [found] = await query(client, `select to_regclass(${client.escapeLiteral(name)}) as name`)
  return found?.name === null ? [] : await query(client, `table ${name}`)
}

const readMigrations = async () => (await readdir(dir)).map((file) => parse(file).name).toSorted()

export const newestMigration = async () => (await readMigrations()).at(-1) as string
