// Migrates the database up to the newest migration.
import { readdir } from 'node:fs/promises'
import { join, parse } from 'node:path'
import type pg from 'pg'
import { durabilitySettings } from '../events.ts'
import { openClient } from './connector.ts'

const oldestMajorVersion = 15
const dir = join(import.meta.dirname, '../../migrations')
const migrationsTable = 'migrations'

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

/** Runs all missing migrations in one transaction, and returns their names. Waits for other instances. */
export async function migrate (url: string): Promise<string[]> {
  const timeoutsMs = { lock_timeout: 30_000, statement_timeout: 600_000, query_timeout: 600_000 }
  const client = await openClient(url, timeoutsMs)
  try {
    const [server] = await query(client, serverStatement.text)
    supportedVersion(server?.version, server?.encoding)
    const done = await readTable(client, migrationsTable)
    if ((await readMigrations()).every((name) => done.some((row) => row.name === name))) return []
    // A worker of Citus gets its tables from the coordinator, the node of group 0.
    const [node] = await readTable(client, 'pg_dist_local_group')
    if (node !== undefined && node.groupid !== 0) {
      throw new UnsupportedServer('This server is a worker of Citus. ' +
        'Run migrate on the coordinator, and serve here with MIGRATE=off.')
    }
    // Load the library on demand, to save start time and 10 MiB of memory.
    const { runner } = await import('node-pg-migrate')
    const ran = await runner({
      dbClient: client,
      dir,
      migrationsTable,
      direction: 'up',
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
  return (await client.query({ text, query_timeout: 5000 } as pg.QueryConfig)).rows
}

/** Returns all rows, or none if the table is missing. */
async function readTable (client: pg.Client, table: string): Promise<Array<Record<string, unknown>>> {
  const [found] = await query(client, `select to_regclass('${table}') as name`)
  return found?.name === null ? [] : await query(client, `table ${table}`)
}

const readMigrations = async () => (await readdir(dir)).map((file) => parse(file).name).toSorted()

export const newestMigration = async () => (await readMigrations()).at(-1) as string
