import { existsSync } from 'node:fs'
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import type { Test } from 'tap'

/** A DATA_DIR, removed once the server in it has stopped. */
export async function createDataDir (t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-test-'))
  // Run by root the server has a user of its own, who must be able to look inside.
  await chmod(folder, 0o755)
  t.teardown(async () => {
    while (isRunning(folder)) await setTimeout(50)
    await rm(folder, { recursive: true })
  })
  return folder
}

const pidFile = (dataDir: string) => join(dataDir, 'postgresql/postmaster.pid')

/** Whether there is a server in the folder, or one was killed there. */
export const isRunning = (dataDir: string) => existsSync(pidFile(dataDir))

export async function findServer (dataDir: string): Promise<number> {
  return Number.parseInt(await readFile(pidFile(dataDir), 'utf8'))
}
