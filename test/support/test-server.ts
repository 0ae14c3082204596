// The PostgreSQL server of a test run, and the folder for its temporary files.
// TEST_DATABASE=container|embedded|<url of a superuser> chooses the server.
// By default the server is a container. If no container starts, the server is embedded.
import { chmod, mkdtemp, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { startEmbedded } from '../../dev/embedded-postgres.ts'
import { migrate } from '../../src/database/migrate.ts'
import { sql } from './database.ts'

interface Server { isOurs: boolean, url: string, close: () => Promise<unknown> }

/** Creates a folder for all temporary files of this run, and makes it the TMPDIR of child processes. */
export async function createFolder (): Promise<string> {
  const memory = '/dev/shm'
  const { bavail, bsize } = await statfs(memory).catch(() => ({ bavail: 0, bsize: 0 }))
  // Prefer a folder in memory with 1 GiB free, because PostgreSQL creates databases faster in memory.
  const parent = process.env.TMPDIR ?? (bavail * bsize > 2 ** 30 ? memory : tmpdir())
  const folder = await mkdtemp(join(parent, 'plant-store-run-'))
  // Give all users access to the folder: if root runs the tests, PostgreSQL runs as another user.
  await chmod(folder, 0o755)
  process.env.TMPDIR = folder
  return folder
}

/** An embedded server keeps its data in `folder`. */
export async function startServer (folder: string): Promise<Server> {
  const wanted = process.env.TEST_DATABASE
  if (wanted?.startsWith('postgres')) return { isOurs: false, url: wanted, close: async () => {} }
  if (wanted !== 'embedded') {
    try {
      return await startContainer()
    } catch (error) {
      if (wanted === 'container') throw error
      console.log(`# no container: ${(error as Error).message}`)
    }
  }
  console.log('# test database: an embedded PostgreSQL')
  return { ...await startEmbedded(join(folder, 'server')), isOurs: true }
}

async function startContainer (): Promise<Server> {
  // Import this package only when needed, because the import takes a third of a second.
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql')
  const container = await new PostgreSqlContainer('postgres:18').start()
  console.log('# test database: a postgres:18 container')
  return { isOurs: true, url: container.getConnectionUri(), close: () => container.stop() }
}

/** Creates the database that test files copy. */
export async function createTemplate ({ url, isOurs }: Server): Promise<void> {
  // The data need not survive a crash, so save the time of fsync. Tests of durability use other servers.
  const settings = isOurs ? ['alter system set fsync = off', 'select pg_reload_conf()'] : []
  const creation = ['drop database if exists plants_template', 'create database plants_template']
  for (const statement of [...settings, ...creation]) await sql(url, statement)
  await migrate(Object.assign(new URL(url), { pathname: '/plants_template' }).href)
}
