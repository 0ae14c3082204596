import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t, { type Test } from 'tap'
import { createDatabase } from '../../support/database.ts'
import { asShipped } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const main = join(root, 'src/main.ts')
const DATABASE_URL = await createDatabase(t)
const [, options = ''] = / node (.*)/.exec(await readFile(main, 'utf8')) ?? []
const bin = join(t.testdir(), 'plant-store')
await symlink(main, bin)

/** Every way the documents name. */
const ways: Record<string, string[]> = {
  'npm start': ['npm', 'start'],
  'npm run dev': ['npm', 'run', 'dev'],
  'the file': [main, 'serve'],
  'a link to it, as npm and the image have one': [bin],
  'the file handed to node': [process.execPath, main, 'serve']
}

/** Starts the service and reads its log until the line with the text. */
async function start (t: Test, words: string[]) {
  const child = spawn('env', [...asShipped, ...words], {
    cwd: root,
    env: { ...process.env, DATABASE_URL, PORT: '0', DRAIN_DELAY: '0' },
    stdio: ['ignore', 'pipe', 'inherit'],
    detached: true
  })
  // The whole group, should a test fail before it has ended.
  t.teardown(() => { if (child.exitCode === null) process.kill(-(child.pid as number), 'SIGKILL') })
  const exited = once(child, 'exit')
  const log: Array<{ msg: string, pid: number }> = []
  const lines = createInterface(child.stdout)[Symbol.asyncIterator]()

  async function logged (text: string) {
    for (;;) {
      const { value, done } = await lines.next()
      if (done) throw new Error(`ended before it logged ${text}`)
      // What npm says stands between the lines of the log.
      if (value.startsWith('{')) log.push(JSON.parse(value))
      if (log.at(-1)?.msg === text) return log.at(-1) as { msg: string, pid: number }
    }
  }
  return { child, exited, logged }
}

for (const [way, words] of Object.entries(ways)) {
  t.test(`${way}: the service has the options of its first line, and ends gracefully with what started it`, async (t) => {
    const { child, exited, logged } = await start(t, words)
    const { pid } = await logged('ready')
    const command = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0')
    t.match(command.join(' '), ` ${options} `)

    child.kill('SIGTERM')
    t.equal((await logged('stopped')).pid, pid)
    await exited
    t.throws(() => process.kill(pid, 0), { code: 'ESRCH' }, 'nothing is left')
  })
}

t.test('npm start: a Ctrl-C, which a terminal sends to npm and to the service, is one signal', async (t) => {
  const { child, exited, logged } = await start(t, ['npm', 'start'])
  await logged('ready')
  process.kill(-(child.pid as number), 'SIGINT')
  await logged('stopped')
  await exited
})
