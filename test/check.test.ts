// Lint, types and words. They run beside the other tests, so that no processor is idle.
import { execFile } from 'node:child_process'
import { promisify } from 'node:util'
import t from 'tap'
import manifest from '../package.json' with { type: 'json' }
import { withoutHooks } from './support/program.ts'

const commands = manifest.scripts.check.split(' && ')
t.jobs = commands.length

for (const command of commands) {
  t.test(`${command} finds no problem`, { buffered: true }, async (t) => {
    const checked = promisify(execFile)('env', [...withoutHooks, 'sh', '-c', command])
    t.equal(await checked.then(() => '', ({ stdout, stderr }) => stdout + stderr), '')
  })
}
