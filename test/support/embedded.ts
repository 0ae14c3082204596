import { existsSync } from 'node:fs'
import { chmod, mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import type { Test } from 'tap'

/** Creates a folder for DATA_DIR. After the test, removes the folder once PostgreSQL has stopped. */
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

/** Also returns true after PostgreSQL was killed, because the file then remains. */
export const isRunning = (dataDir: string) => existsSync(pidFile(dataDir))

export const findServer = async (dataDir: string) => parseInt(await readFile(pidFile(dataDir), 'utf8'))
