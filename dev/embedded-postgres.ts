// A PostgreSQL of the program's own, for who has none.
import { fork } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import { createClient } from '../src/database/client.ts'

export interface EmbeddedServer {
  url: string
  /** Returns once the server has stopped. */
  close (): Promise<void>
}

interface Running { url: string, ownerPid: number }

/**
 * Starts a PostgreSQL server of the program's own, reachable on loopback only,
 * with its data in the folder. Rejects when another process has one there. It
 * stops when this process ends, however that comes about.
 */
export async function startEmbedded (folder: string): Promise<EmbeddedServer> {
  const dataDir = resolve(folder)
  const running = await findRunning(dataDir)
  if (running !== undefined) {
    if (signal(running.ownerPid, 0)) throw new Error(`${dataDir} is in use by process ${running.ownerPid}`)
    await stopOrphan(dataDir)
  }
  // In a process group of its own: a Ctrl-C in the terminal is for the service,
  // which needs its database until it has finished.
  const keeper = join(import.meta.dirname, 'supervisor.ts')
  const child = fork(keeper, [dataDir, String(process.pid)], { detached: true, stdio: 'ignore' })
  const exited = once(child, 'exit')
  const [message] = await Promise.race([once(child, 'message'), exited.then(() => [{ error: 'it ended' }])])
  const { url, error } = message as { url: string, error?: string }
  if (error !== undefined) {
    const reason = inOneLine(error)
    throw new Error(`DATABASE_URL is not set, and PostgreSQL did not start in ${dataDir}: ${reason}`)
  }
  return {
    url,
    close: async () => {
      // It is not when the process was killed.
      if (child.connected) child.disconnect()
      await exited
    }
  }
}

/** The server that another process of this program runs on the folder, if one does. */
export async function findRunning (folder: string): Promise<Running | undefined> {
  const running: Running | undefined = await readFile(join(resolve(folder), 'server.json'), 'utf8')
    .then(JSON.parse)
    .catch(() => undefined)
  if (running === undefined) return undefined
  const client = createClient({ connectionString: running.url })
  // 57P03: it is there, but starting or stopping.
  const isThere = await client.connect().then(() => true, ({ code }) => code === '57P03')
  await client.end()
  return isThere ? running : undefined
}

/** With a word for root on why it may not do what it may do anywhere else. */
function inOneLine (error: string): string {
  const line = error.trim().replaceAll(/\s+/g, ' ')
  const hint = 'started by root, PostgreSQL runs as the user postgres'
  return line.replace(/permission denied.*|EACCES$/i, `$& (${hint})`)
}

/** False when there is no such process. */
function signal (pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    // Not 0, which stands for every process of this one's group.
    return pid > 0 && process.kill(pid, name)
  } catch (error) {
    return (error as NodeJS.ErrnoException).code === 'EPERM'
  }
}

// Its owner was killed, and perhaps the process between them, too.
async function stopOrphan (dataDir: string): Promise<void> {
  const lines = await readFile(join(dataDir, 'postgresql/postmaster.pid'), 'utf8').catch(() => '')
  const pid = Number(lines.split('\n', 1)[0])
  const giveUp = Date.now() + 10_000
  // SIGINT asks PostgreSQL for a fast shutdown; asking again changes nothing.
  while (Date.now() < giveUp && signal(pid, 'SIGINT')) await setTimeout(50)
}
