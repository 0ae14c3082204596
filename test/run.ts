// Runs tap on a temporary PostgreSQL server: node test/run.ts [arguments for tap]
// TEST_DATABASE=container|embedded|<url of a superuser> chooses the server.
// By default the server is a container. If no container starts, the server is embedded.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdtemp, rm, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pg from 'pg'
import { startEmbedded } from '../dev/embedded-postgres.ts'
import { migrate } from '../src/database/migrate.ts'
import { findBrowser } from './support/chromium.ts'
import { endLeftovers } from './support/processes.ts'

interface Server { kind: string, isOurs: boolean, url: string, close: () => Promise<unknown> }

async function startServer (): Promise<Server> {
  const wanted = process.env.TEST_DATABASE ?? 'any'
  if (wanted.startsWith('postgres')) {
    return { kind: 'the given server', isOurs: false, url: wanted, close: async () => {} }
  }
  if (wanted === 'embedded') return startEmbeddedServer()
  if (wanted === 'container') return startContainer()
  try {
    return await startContainer()
  } catch (error) {
    console.log(`# no container: ${(error as Error).message}`)
    return startEmbeddedServer()
  }
}

async function startContainer (): Promise<Server> {
  // Import this package only when needed, because the import takes a third of a second.
  const { PostgreSqlContainer } = await import('@testcontainers/postgresql')
  const container = await new PostgreSqlContainer('postgres:18').start()
  const url = container.getConnectionUri()
  return { kind: 'a postgres:18 container', isOurs: true, url, close: () => container.stop() }
}

async function startEmbeddedServer (): Promise<Server> {
  const { url, close } = await startEmbedded(join(folder, 'server'))
  return { kind: 'an embedded PostgreSQL', isOurs: true, url, close }
}

/** Creates the database that test files copy. */
async function createTemplate ({ url, isOurs }: Server): Promise<void> {
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

/** Prefers a folder in memory with 1 GiB free, because PostgreSQL creates databases faster in memory. */
async function findFolder (): Promise<string> {
  const memory = '/dev/shm'
  const { bavail, bsize } = await statfs(memory).catch(() => ({ bavail: 0, bsize: 0 }))
  return bavail * bsize > 2 ** 30 ? memory : tmpdir()
}

function warn ({ message }: Error): undefined {
  console.log(`# NO BROWSER: tests of pages are skipped, and fail when CI is set\n${message}`)
}

// All temporary files are in this folder. If a process still uses the folder after the tests, the run fails.
const folder = await mkdtemp(join(process.env.TMPDIR ?? await findFolder(), 'plant-store-run-'))
// Give all users access to the folder: if root runs the tests, PostgreSQL runs as another user.
await chmod(folder, 0o755)
process.env.TMPDIR = folder
const server = await startServer()
console.log(`# test database: ${server.kind}`)
// Ctrl-C signals tap and this process. Ignore SIGINT here: the server must run until tap has stopped.
process.on('SIGINT', () => {})
try {
  // Only test/system/clients/ needs a browser. Other runs skip the search, which takes a second.
  const opensPages = process.argv.some((argument) => argument.includes('test/system/clients/'))
  const [browser] = await Promise.all([
    opensPages ? findBrowser().catch(warn) : undefined,
    createTemplate(server)
  ])
  const tap = spawn('tap', process.argv.slice(2), {
    stdio: 'inherit',
    env: { ...process.env, TEST_DATABASE_URL: server.url, TEST_BROWSER: browser && JSON.stringify(browser) }
  })
  const [code] = await once(tap, 'exit')
  process.exitCode = code ?? 1
} finally {
  await server.close()
  const left = await endLeftovers(folder)
  if (left.length > 0) {
    console.log(`# STILL RUNNING after the tests:\n${left.join('\n')}`)
    process.exitCode = 1
  }
  await rm(folder, { recursive: true, maxRetries: 5 })
}
process.exit()
