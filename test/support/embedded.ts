import { existsSync } from 'node:fs'
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import type { Test } from 'tap'

/** Creates a DATA_DIR. After the test, waits until its server has stopped, then removes the folder. */
export async function createDataDir (t: Test): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-test-'))
  // If root runs the tests, PostgreSQL runs as another user. Give all users access to the folder.
  await chmod(folder, 0o755)
  t.teardown(async () => {
    while (isRunning(folder)) await setTimeout(50)
    await rm(folder, { recursive: true })
  })
  return folder
}

const pidFile = (dataDir: string) => join(dataDir, 'postgresql/postmaster.pid')

/** Returns whether the server's process id file exists. A killed server does not remove the file. */
export const isRunning = (dataDir: string) => existsSync(pidFile(dataDir))

export async function findServer (dataDir: string): Promise<number> {
  return Number.parseInt(await readFile(pidFile(dataDir), 'utf8'))
}
