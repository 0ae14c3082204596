import { existsSync } from 'node:fs'
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import type { Test } from 'tap'

/** Creates a DATA_DIR, which is removed when its server has stopped. */
export async function createDataDir (t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-test-'))
  // Under root the server runs as another user, which must be able to read the folder.
  await chmod(folder, 0o755)
  t.teardown(async () => {
    while (isRunning(folder)) await setTimeout(50)
    await rm(folder, { recursive: true })
  })
  return folder
}

const pidFile = (dataDir: string) => join(dataDir, 'postgresql/postmaster.pid')

/** Returns true also when the server was killed. */
export const isRunning = (dataDir: string) => existsSync(pidFile(dataDir))

/** Returns the process id of the server. */
export async function findServer (dataDir: string): Promise<number> {
  return Number.parseInt(await readFile(pidFile(dataDir), 'utf8'))
}
