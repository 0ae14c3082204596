// Tests that a shutdown ends in time with exit code 0, even when the log or the database stalls.
import { execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, constants, openSync, readSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { createDatabase } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { serve, unmeasured } from '../../support/program.ts'
import { openProxy } from '../faults/proxy.ts'

const main = join(import.meta.dirname, '../../../src/main.ts')
const DATABASE_URL = await createDatabase(t)
const environment = { DATABASE_URL, LOG_LEVEL: 'debug', SHUTDOWN_TIMEOUT: '3s', DRAIN_DELAY: '0' }

/**
 * Starts the service with a pipe as its log, and sends `lines` requests, which the service logs. About 300
 * lines fill the pipe: then the log stalls until `read` is called.
 */
async function startStalled (t: Test, lines: number) {
  const path = join(t.testdir(), 'log')
  execFileSync('mkfifo', [path])
  // Open the service's end of the pipe without O_NONBLOCK, as a shell does.
  const pipe = openSync(path, constants.O_RDWR)
  const reader = openSync(path, constants.O_RDONLY | constants.O_NONBLOCK)
  const address = `http://127.0.0.1:${await freePort()}`
  const child = spawn(main, ['serve'], {
    env: { ...process.env, ...environment, PORT: new URL(address).port },
    stdio: ['ignore', pipe, 'inherit']
  })
  const exited = once(child, 'exit')
  t.teardown(() => {
    child.kill('SIGKILL')
    closeSync(pipe)
    closeSync(reader)
  })
  const headers = { traceparent: '00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01' }
  const get = (path: string) => fetch(address + path, { headers })
  while (!await get('/readyz').then(({ ok }) => ok, () => false)) await setTimeout(50)
  for (let sent = 0; sent < lines; sent += 100) {
    await Promise.all(Array.from({ length: 100 }, () => get('/livez')))
  }

  const piece = Buffer.alloc(65_536)
  const read = () => piece.toString('utf8', 0, readSync(reader, piece))
  return { child, exited, get, read }
}

t.test('the service runs and stops while its log is not read', async (t) => {
  const { get, child, exited } = await startStalled(t, 1000)
  t.equal((await get('/livez')).status, 200)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('the log says how many lines were dropped while it was not read', async (t) => {
  const { child, exited, get, read } = await startStalled(t, 5000)
  let log = ''
  while (!log.includes('"msg":"log lines were dropped"')) {
    await get('/livez')
    log += read()
  }
  const line = log.split('\n').find((line) => line.includes('were dropped')) as string
  t.match(JSON.parse(line), { level: 'warn', dropped: /^[1-9]\d*$/ })
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('the service runs and stops after the reader of its log has gone', async (t) => {
  const { address, child, exited } = await serve(t, environment)
  child.stdout.destroy()
  for (let index = 0; index < 3; index++) t.equal((await fetch(`${address}/livez`)).status, 200)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})

t.test('the service stops while its database accepts connections and does not respond', async (t) => {
  const proxy = await openProxy(t, DATABASE_URL)
  const overrides = { DATABASE_URL: proxy.url, SHUTDOWN_TIMEOUT: '1s' }
  const { address, child, exited } = await unmeasured.serve(t, { ...environment, ...overrides })
  proxy.set('silent')
  proxy.cut()
  t.equal((await fetch(`${address}/readyz`)).status, 503)
  child.kill('SIGTERM')
  t.strictSame(await exited, [0, null])
})
