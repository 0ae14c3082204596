// Tests a service with a log that its reader does not read.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { asShipped, program, unmeasured } from '../../support/program.ts'

const environment = { DATABASE_URL: await createDatabase(t), LOG_LEVEL: 'debug', DRAIN_DELAY: '0' }

t.test('a log that nobody reads loses lines, and says how many', async (t) => {
  const path = join(t.testdir(), 'log')
  execFileSync('mkfifo', [path])
  // Open the service's end of the pipe without O_NONBLOCK, as a shell does.
  const pipe = openSync(path, constants.O_RDWR)
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const address = `http://127.0.0.1:${await freePort()}`
  const env = { ...process.env, ...environment, PORT: new URL(address).port }
  const child = spawn('env', [...asShipped, ...program, 'serve'], { env, stdio: ['ignore', pipe, 'inherit'] })
  const exited = once(child, 'exit')
  t.teardown(() => {
    child.kill('SIGKILL')
    closeSync(pipe)
    closeSync(reader)
  })
  const headers = { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' }
  const get = (path: string) => fetch(address + path, { headers })
  while (!await get('/readyz').then(({ ok }) => ok, () => false)) await setTimeout(50)
  // About 300 lines fill the pipe, and a further 1 MiB waits in the service.
  for (let sent = 0; sent < 5000; sent += 100) {
    await Promise.all(Array.from({ length: 100 }, () => get('/livez')))
  }
  const piece = Buffer.alloc(65_536)
  let log = ''
  while (!log.includes('"msg":"log lines were dropped"')) {
    await get('/livez')
    log += piece.toString('utf8', 0, readSync(reader, piece))
  }
  const line = log.split('\n').find((line) => line.includes('were dropped')) as string
  t.match(JSON.parse(line), { level: 'warn', dropped: /^[1-9]\d*$/ })
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('the service runs and stops after the reader of its log has gone', async (t) => {
  const { address, child, exited } = await unmeasured.serve(t, environment)
  child.stdout.destroy()
  for (let index = 0; index < 3; index++) t.equal((await fetch(`${address}/livez`)).status, 200)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})
