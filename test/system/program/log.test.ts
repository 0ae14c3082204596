// Tests a service with a log that is not read, that lost its reader, or that is on a full disk.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readSync } from 'node:fs'
import { readFile, stat, truncate } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createDatabase } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { hasEnded } from '../../support/processes.ts'
import { asShipped, program } from '../../support/program.ts'

const DATABASE_URL = await createDatabase(t)
const headers = { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' }
const warning = /^{"level":"warn",.*"dropped":[1-9]\d*,"msg":"log lines were dropped"/m

/** Starts the service in a shell, which runs `limit` first. The service writes its log to the file `log`. */
async function serveInto (t: Test, log: string, limit = '') {
  const PORT = String(await freePort())
  const env = { ...process.env, DATABASE_URL, PORT, LOG_LEVEL: 'debug', DRAIN_DELAY: '0' }
  const line = `${limit} exec env "$@" >> ${log}`
  const child = spawn('sh', ['-c', line, 'sh', ...asShipped, ...program, 'serve'], { env, stdio: 'inherit' })
  t.teardown(() => { child.kill('SIGKILL') })
  const exited = once(child, 'exit')
  const get = () => fetch(`http://127.0.0.1:${PORT}/livez`, { headers }).then(({ ok }) => ok, () => false)
  while (!await get() && !hasEnded(child)) await setTimeout(50)
  return { get, stop: () => child.kill('SIGTERM') && exited }
}

t.test('a log that nobody reads loses lines, says how many, and may lose its reader', async (t) => {
  const path = join(t.testdir(), 'log')
  execFileSync('mkfifo', [path])
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const { get, stop } = await serveInto(t, path)
  // About 300 lines fill the pipe, and a further 1 MiB waits in the service.
  for (let sent = 0; sent < 5000; sent += 100) await Promise.all(Array.from({ length: 100 }, get))
  const piece = Buffer.alloc(65_536)
  let log = ''
  while (!log.includes('"msg":"log lines were dropped"') && await get()) {
    log += piece.toString('utf8', 0, readSync(reader, piece))
  }
  t.match(log, warning)
  closeSync(reader)
  for (let sent = 0; sent < 3; sent++) t.ok(await get())
  t.strictSame(await stop(), [0, null])
})

t.test('a full disk loses log lines, and the log says how many when there is room', async (t) => {
  const log = join(t.testdir(), 'log')
  // No file of the service may exceed 64 blocks. Beyond that, a write fails as on a full disk.
  const { get, stop } = await serveInto(t, log, 'ulimit -f 64;')
  for (let before = -1, size = 0; size > before; before = size, { size } = await stat(log)) {
    for (let sent = 0; sent < 50; sent++) await get()
  }
  // Make room behind a line that was not written to its end.
  const end = (await readFile(log)).lastIndexOf('\n', 20_000) + 50
  await truncate(log, end)
  for (let sent = 0; sent < 2; sent++) await get()
  const [rest, ...lines] = (await readFile(log, 'utf8')).slice(end).split('\n')
  t.equal(rest, '')
  t.match(lines[0], warning)
  for (const line of lines.slice(0, -1)) t.doesNotThrow(() => JSON.parse(line), line)
  t.strictSame(await stop(), [0, null])
})
