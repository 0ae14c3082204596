// A copy of the work tree, in which one test file runs at a time.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, mkdir, readdir, symlink, writeFile } from 'node:fs/promises'
import { join, relative } from 'node:path'
import { endLeftovers } from '../support/processes.ts'

export type Copy = Awaited<ReturnType<typeof createCopy>>

/** `place` becomes a folder with the copy and its temporary files. */
export async function createCopy (place: string, databaseUrl: string, signal: AbortSignal) {
  const root = process.cwd()
  const [tree, temporary] = [join(place, 'tree'), join(place, 'tmp')]
  const isCopied = (path: string) => !/(^|\/)(node_modules|\.git|\.tap|\.data)$/.test(relative(root, path))
  await cp(root, tree, { recursive: true, filter: isCopied })
  // Link each package. The folder `.cache` is the copy's own, because the cache grows with each mutant.
  await mkdir(join(tree, 'node_modules'))
  for (const name of await readdir('node_modules')) {
    if (name !== '.cache') await symlink(join(root, 'node_modules', name), join(tree, 'node_modules', name))
  }
  await mkdir(temporary)

  /** Returns the milliseconds of the test file, or undefined if the file fails or exceeds the timeout. */
  async function run (file: string, timeoutMs: number): Promise<number | undefined> {
    const started = performance.now()
    const child = spawn(process.execPath, ['--import=./test/support/compile-cache.ts', file], {
      cwd: tree,
      detached: true,
      stdio: 'ignore',
      env: {
        ...process.env,
        TMPDIR: temporary,
        TEST_DATABASE_URL: databaseUrl,
        TAP_BAIL: '1',
        TAP_TIMEOUT: '300',
        // compile-cache.ts uses a cache only with this value.
        _TAPJS_PROCESSINFO_COVERAGE_: '0'
      }
    })
    // The whole process group, because a test may have started the program.
    const kill = () => {
      try {
        process.kill(-Number(child.pid), 'SIGKILL')
      } catch {
        // All its processes have ended.
      }
    }
    const timer = setTimeout(kill, timeoutMs)
    signal.addEventListener('abort', kill)
    const [code] = await once(child, 'exit')
    signal.removeEventListener('abort', kill)
    clearTimeout(timer)
    if (code === 0) return performance.now() - started
    kill()
    await endLeftovers(temporary)
    return undefined
  }

  return { run, write: (file: string, source: string) => writeFile(join(tree, file), source) }
}
