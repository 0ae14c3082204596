import { execFile, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { stat } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { createDataDir, isRunning } from '../../support/embedded.ts'
import { run, serve, type Program } from '../../support/program.ts'

// The tests run in order. Each test continues with the data of the previous test.
const DATA_DIR = await createDataDir(t)
const environment = { DATABASE_URL: undefined, DATA_DIR, DRAIN_DELAY: '0' }
const start = () => serve(t, environment)
let service: Program
const usesEmbedded = `DATABASE_URL is not set: using the PostgreSQL server in ${DATA_DIR}\n`

/** Waits until standard error has `lines` lines, then returns standard error. */
async function quickStart ({ child, stderr }: Program, lines: number): Promise<string> {
  while (stderr().split('\n').length <= lines) await once(child.stderr, 'data')
  return stderr()
}

let lines: string[]
await t.test('the first start prints a token and three commands to try', async (t) => {
  service = await start()
  lines = (await quickStart(service, 6)).split('\n')
  t.equal(lines[0], 'Three commands to try, with a token for the user demo that is shown only once:')
  t.equal(lines.filter((line) => line.startsWith('curl ')).length, 3)
  const [token] = /plant_\w{57}/.exec(lines.join('\n')) as RegExpExecArray
  t.notMatch(JSON.stringify(service.log), token, 'the log does not show the token')
  for (const secret of ['server.json', 'postgresql/plant-store.password']) {
    t.equal((await stat(join(DATA_DIR, secret))).mode & 0o777, 0o600, secret)
  }
})

const hasCurl = spawnSync('curl', ['--version']).error === undefined
await t.test('the three commands work when pasted', { skip: !hasCurl && 'there is no curl' }, async (t) => {
  const printed = []
  for (const line of lines.filter((line) => line.startsWith('curl '))) {
    printed.push((await promisify(execFile)('sh', ['-c', `${line} --silent --show-error --fail`])).stdout)
  }
  const plant = '{"name":"Monstera deliciosa","tag":"tropical"}'
  t.strictSame(printed, [plant, `[${plant}]`, ''])
})

await t.test('token commands work while the service runs and name its database', async (t) => {
  const { stdout: token, stderr } = await run(['token', 'create', 'alice'], environment)
  t.equal(stderr, usesEmbedded)
  const headers = { authorization: `Bearer ${token.trim()}` }
  t.equal((await fetch(`${service.address}/plants`, { headers })).status, 200)
})

await t.test('a second start on the folder fails with one line and does not disturb the first', async (t) => {
  t.strictSame(await run(['serve'], { ...environment, PORT: '0' }),
    { code: 1, stdout: '', stderr: `${DATA_DIR} is in use by process ${service.child.pid}\n` })
  t.equal((await fetch(`${service.address}/readyz`)).status, 200)
})

await t.test('the database stops with the service', async (t) => {
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
  t.notOk(isRunning(DATA_DIR))
})

await t.test('token commands work without the service and leave nothing running', async (t) => {
  const { stdout, stderr } = await run(['token', 'list', '--json'], environment)
  t.equal(stderr, usesEmbedded)
  t.match(JSON.parse(stdout), [{ user: 'demo' }, { user: 'alice' }])
  t.notOk(isRunning(DATA_DIR))
})

await t.test('the next start names the token command', async (t) => {
  service = await start()
  t.equal(await quickStart(service, 1), 'To create a token: npx plant-store token create <user>\n')
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
})
