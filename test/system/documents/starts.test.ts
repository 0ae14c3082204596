import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import manifest from '../../../package.json' with { type: 'json' }
import { createDatabase } from '../../support/database.ts'
import { asShipped, nodeOptions, program } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const DATABASE_URL = await createDatabase(t)
const bin = join(t.testdir(), 'plant-store')
await symlink(join(root, 'src/main.ts'), bin)

/** Documented ways to start the service. `hasOptions` tells if the command line has the options for Node. */
const ways: Record<string, { words: string[], hasOptions: boolean }> = {
  'npm start': { words: ['npm', 'start'], hasOptions: true },
  'npm run dev': { words: ['npm', 'run', 'dev'], hasOptions: true },
  'the command line of the image': { words: program, hasOptions: true },
  'a link to src/main.ts, as npm and the image have one': { words: [bin], hasOptions: false }
}

/** Starts the service. `logged(text)` reads the log up to the line with this message. */
async function start (t: Test, words: string[]) {
  const child = spawn('env', [...asShipped, ...words], {
    cwd: root,
    env: { ...process.env, DATABASE_URL, PORT: '0', DRAIN_DELAY: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true
  })
  // If a test fails early, kill the whole process group.
  t.teardown(() => { if (child.exitCode === null) process.kill(-(child.pid as number), 'SIGKILL') })
  const exited = once(child, 'exit')
  const log: Array<{ msg: string, pid: number }> = []
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]()

  async function logged (text: string) {
    for (;;) {
      const { value, done } = await lines.next()
      if (done) throw new Error(`ended before it logged ${text}`)
      // npm prints lines that are not JSON.
      if (value.startsWith('{')) log.push(JSON.parse(value))
      if (log.at(-1)?.msg === text) return log.at(-1) as { msg: string, pid: number }
    }
  }
  return { child, exited, logged }
}

t.test('npm start, npm run dev and the image give Node the same options', async (t) => {
  const options = nodeOptions.join(' ')
  t.match(options, /^--max-semi-space-size=\d+ /)
  t.match(manifest.scripts.dev, ` ${options} src/main.ts serve`)
  const dockerfile = await readFile(join(root, 'Dockerfile'), 'utf8')
  const [, entryPoint = ''] = /^ENTRYPOINT (.*)$/m.exec(dockerfile) ?? []
  t.strictSame(JSON.parse(entryPoint), ['node', ...nodeOptions, '/app/src/main.ts'])
})

for (const [way, { words, hasOptions }] of Object.entries(ways)) {
  t.test(`started by ${way}, the service ends gracefully with the process that started it`, async (t) => {
    const { child, exited, logged } = await start(t, words)
    const { pid } = await logged('ready')
    const command = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0')
    t.equal(command.join(' ').includes(` ${nodeOptions.join(' ')} `), hasOptions)

    child.kill('SIGTERM')
    t.equal((await logged('stopped')).pid, pid)
    await exited
    t.throws(() => process.kill(pid, 0), { code: 'ESRCH' }, 'no process is left')
  })
}

t.test('npm start: a Ctrl-C, which reaches both npm and the service, counts as one signal', async (t) => {
  const { child, exited, logged } = await start(t, ['npm', 'start'])
  await logged('ready')
  process.kill(-(child.pid as number), 'SIGINT')
  await logged('stopped')
  await exited
})
