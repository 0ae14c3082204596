// The PostgreSQL server of a test run, and the folder for its temporary files.
// TEST_DATABASE=container|embedded|<url of a superuser> chooses the server.
// By default the server is a container. If no container starts, the server is embedded.
import { chmod, mkdtemp, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { startEmbedded } from '../../dev/embedded-postgres.ts'
import { migrate } from '../../src/database/migrate.ts'

interface Server { kind: string, isOurs: boolean, url: string, close: () => Promise<unknown> }

/** Creates a folder for all temporary files of this run, and makes it the TMPDIR of child processes. */
export async function createFolder (): Promise<string> {
  const folder = await mkdtemp(join(process.env.TMPDIR ?? await findFolder(), 'plant-store-run-'))
  // Give all users access to the folder: if root runs the tests, PostgreSQL runs as another user.
  await chmod(folder, 0o755)
  process.env.TMPDIR = folder
  return folder
}

/** Prefers a folder in memory with 1 GiB free, because PostgreSQL creates databases faster in memory. */
async function findFolder (): Promise<string> {
  const memory = '/dev/shm'
  const { bavail, bsize } = await statfs(memory).catch(() => ({ bavail: 0, bsize: 0 }))
  return bavail * bsize > 2 ** 30 ? memory : tmpdir()
}

/** An embedded server keeps its data in `folder`. */
export async function startServer (folder: string): Promise<Server> {
  const server = await startWantedServer(folder)
  console.log(`# test database: ${server.kind}`)
  return server
}

async function startWantedServer (folder: string): Promise<Server> {
  const wanted = process.env.TEST_DATABASE ?? 'any'
  if (wanted.startsWith('postgres')) {
    return { kind: 'the given server', isOurs: false, url: wanted, close: async () => {} }
  }
  if (wanted === 'embedded') return startEmbeddedServer(folder)
  if (wanted === 'container') return startContainer()
  try {
    return await startContainer()
  } catch (error) {
    console.log(`# no container: ${(error as Error).message}`)
    return startEmbeddedServer(folder)
  }
}

async function startContainer (): Promise<Server> {
  // Import this package only when needed, because the import takes a third of a second.
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql')
  const container = await new PostgreSqlContainer('postgres:18').start()
  const url = container.getConnectionUri()
  return { kind: 'a postgres:18 container', isOurs: true, url, close: () => container.stop() }
}

async function startEmbeddedServer (folder: string): Promise<Server> {
  const { url, close } = await startEmbedded(join(folder, 'server'))
  return { kind: 'an embedded PostgreSQL', isOurs: true, url, close }
}

/** Creates the database that test files copy. */
export async function createTemplate ({ url, isOurs }: Server): Promise<void> {
  const client = new pg.Client(url)
  await client.connect()
  // The data need not survive a crash, so save the time of fsync. Tests of durability use other servers.
  if (isOurs) {
    await client.query('alter system set fsync = off')
    await client.query('select pg_reload_conf()')
  }
  await client.query('drop database if exists plants_template')
  await client.query('create database plants_template')
  await client.end()
  const template = new URL(url)
  template.pathname = '/plants_template'
  await migrate(template.href, 'up')
}
