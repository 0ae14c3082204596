// Node's options for starts that know nothing of the first line of main.ts, where
// they are named.
import { readFileSync } from 'node:fs'
import { join } from 'node:path'

const [firstLine = ''] = readFileSync(join(import.meta.dirname, '../main.ts'), 'utf8').split('\n', 1)
const options = firstLine.split(' ').filter((word) => word.startsWith('--'))

/**
 * Begins this process anew, under the id it has, with the options it lacks:
 * V8 takes them at its start only. Windows has no such thing; there it goes on
 * without them.
 */
export function reexecWithNodeFlags (): void {
  const missing = options.filter((option) => !process.execArgv.includes(option))
  // What comes after is another program, which leaves no trace of these lines; starts.test.ts tests them.
  /* c8 ignore next 3 */
  if (missing.length === 0 || process.platform === 'win32') return
  const [node, ...words] = process.argv as [string, ...string[]]
  process.execve?.(node, [node, ...missing, ...process.execArgv, ...words])
}
