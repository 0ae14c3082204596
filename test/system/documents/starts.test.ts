// Starts the service in the documented ways.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { asShipped } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const DATABASE_URL = await createDatabase(t)
const read = (name: string) => readFile(join(root, name), 'utf8')
const [, entryPoint = ''] = /^ENTRYPOINT (.*)$/m.exec(await read('Dockerfile')) ?? []
const [, execStart = ''] = /^ExecStart=(.*)$/m.exec(await read('deploy/plant-store@.service')) ?? []
const folder = t.testdir({ 'plant-store': t.fixture('symlink', join(root, 'src/main.ts')) })
const [, ...options] = (await read('src/main.ts')).split('\n', 1)[0]?.split(/ (?=--)/) as string[]
t.ok(options.length > 0, 'the first line of src/main.ts has options of V8')

/** `npm run dev` needs Node's own options and does without V8's. Ctrl-C reaches both npm and the service. */
const ways: Array<[way: string, words: string[], options: string[], isCtrlC?: boolean]> = [
  ['npm start', ['npm', 'start'], options],
  ['npm start and Ctrl-C', ['npm', 'start'], options, true],
  ['npm run dev', ['npm', 'run', 'dev'], []],
  ['a link to src/main.ts, as npx and the image have one', [join(folder, 'plant-store')], options],
  ['the entry point of the image', JSON.parse(entryPoint.replace('/app', root)), options],
  ['the systemd unit', execStart.replace('/opt/plant-store', root).split(' '), options]
]

for (const [way, words, options, isCtrlC = false] of ways) {
  t.test(`started by ${way}, the service has V8's options and ends with its parent`, async (t) => {
    const child = spawn('env', [...asShipped, ...words], {
      cwd: root,
      env: { ...process.env, DATABASE_URL, PORT: '0', DRAIN_DELAY: '0' },
      stdio: ['ignore', 'pipe', 'inherit'],
      detached: true
    })
    const group = -(child.pid as number)
    // If the test fails early, kill the whole process group.
    t.teardown(() => { if (child.exitCode === null) process.kill(group, 'SIGKILL') })
    const exited = once(child, 'exit')
    const pids: Record<string, number> = {}
    for await (const line of createInterface(child.stdout)) {
      // npm prints lines that are not JSON.
      if (!line.startsWith('{')) continue
      const { msg, pid } = JSON.parse(line)
      pids[msg] = pid
      if (msg !== 'ready') continue
      const words = (await readFile(`/proc/${pid}/cmdline`, 'utf8')).split('\0')
      t.strictSame(options.filter((option) => !words.includes(option)), [])
      if (isCtrlC) process.kill(group, 'SIGINT')
      else child.kill('SIGTERM')
    }
    t.type(pids.ready, 'number')
    t.equal(pids.stopped, pids.ready)
    await exited
    t.throws(() => process.kill(pids.ready as number, 0), { code: 'ESRCH' }, 'no process is left')
  })
}
