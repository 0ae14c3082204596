import { spawn, type ChildProcess } from 'node:child_process'
import { EventEmitter, once } from 'node:events'
import { chmod, mkdtemp, readFile, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { startEmbedded } from '../../../dev/embedded-postgres.ts'
import { migrate } from '../../../src/database/migrate.ts'
import { createToken, hashToken } from '../../../src/access/tokens.ts'
import { sql } from '../../support/database.ts'
import { findChildren } from '../../support/processes.ts'
import type { Scope } from '../../support/program.ts'

interface Command { file: string, args: string[], uid: number, gid: number }

/** Creates a PostgreSQL server with the service's tables, then stops it. `runServer` starts it again. */
export async function makeServer (scope: Scope) {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-faults-'))
  scope.teardown(() => rm(folder, { recursive: true }))
  // If root runs the tests, the server runs as another user, who needs to read the folder.
  await chmod(folder, 0o755)
  const embedded = await startEmbedded(folder)
  const dataDir = join(folder, 'postgresql')
  // PostgreSQL writes its command line to postmaster.opts. `runServer` uses the same command line.
  const options = await readFile(join(dataDir, 'postmaster.opts'), 'utf8')
  const { uid, gid } = await stat(dataDir)
  await migrate(embedded.url)
  await embedded.close()
  const [file = '', ...args] = [...options.matchAll(/"(.*?)"|\S+/g)].map(([word, quoted]) => quoted ?? word)
  return { url: embedded.url, folder, dataDir, command: { file, args, uid, gid } }
}

export type Postgres = Awaited<ReturnType<typeof startPostgres>>

/** Starts a PostgreSQL server with the service's tables. A restart does not change the server's port. */
export async function startPostgres (scope: Scope) {
  const { url, command } = await makeServer(scope)
  return { url, ...await runServer(scope, command) }
}

export async function runServer (scope: Scope, { file, args, uid, gid }: Command) {
  const events = new EventEmitter()
  const untilReady = () => once(events, 'ready').then(() => performance.now())
  let server: ChildProcess
  let exited: Promise<unknown[]>

  /** Resolves with the time at which the server begins to accept connections. */
  async function start (): Promise<number> {
    // PostgreSQL cannot start while backends of a killed server still use its shared memory. So retry.
    for (let attempt = 0; attempt < 50; attempt++) {
      server = spawn(file, args, { uid, gid, stdio: ['ignore', 'ignore', 'pipe'] })
      createInterface(server.stderr as NodeJS.ReadableStream).on('line', (line) => {
        if (/ready to accept (read-only )?connections/.test(line)) events.emit('ready')
      })
      exited = once(server, 'exit')
      const since = await Promise.race([untilReady(), exited.then(() => undefined)])
      if (since !== undefined) return since
    }
    throw new Error('PostgreSQL does not start')
  }

  // Backends have their own process groups, so a signal to the postmaster's group would not reach them.
  async function signal (name: NodeJS.Signals): Promise<void> {
    for (const pid of [...await findChildren(server.pid).catch(() => []), server.pid as number]) {
      try {
        process.kill(pid, name)
      } catch {
        // The process has ended.
      }
    }
  }

  await start()
  scope.teardown(async () => {
    await signal('SIGCONT')
    server.kill('SIGINT')
    await exited
  })

  return {
    start,
    /** Resolves with the time of the next start, also of a start after a crash of a backend. */
    untilReady,
    kill: () => Promise.all([exited, signal('SIGKILL')]),
    /** Kills the postmaster only. The backends exit by themselves. */
    killPostmaster: () => Promise.all([exited, server.kill('SIGKILL')]),
    freeze: () => signal('SIGSTOP'),
    thaw: () => signal('SIGCONT')
  }
}

/** Stores and returns one token for each user. */
export async function createUsers (url: string, users: string[]): Promise<string[]> {
  const tokens = users.map(() => createToken())
  const hashes = tokens.map((token) => `\\x${hashToken(token)}`)
  await sql(url, 'insert into tokens (hash, username) select * from unnest($1::bytea[], $2::text[])',
    [hashes, users])
  return tokens
}
