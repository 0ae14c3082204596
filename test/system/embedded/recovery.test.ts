import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { readFile, stat, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import t from 'tap'
import { createDataDir, findServer, isRunning } from '../../support/embedded.ts'
import { findChildren } from '../../support/processes.ts'
import { unmeasured, type Program } from '../../support/program.ts'

// The tests run in order. Each test continues with the data of the previous test.
const DATA_DIR = await createDataDir(t)
const environment = { DATABASE_URL: undefined, DATA_DIR, DRAIN_DELAY: '0' }
const start = () => unmeasured.serve(t, environment, 'ready', { detached: true })
let service = await start()
const { stdout: token } = await unmeasured.run(['token', 'create', 'alice'], environment)
const headers = { authorization: `Bearer ${token.trim()}`, 'content-type': 'application/json' }
const usesEmbedded = `DATABASE_URL is not set: using the PostgreSQL server in ${DATA_DIR}\n`

const names: string[] = []

async function createPlants ({ address }: Program): Promise<void> {
  await Promise.all(Array.from({ length: 20 }, async (_, index) => {
    const id = names.length + index
    const body = JSON.stringify({ id, name: `plant ${id}` })
    const { status } = await fetch(`${address}/plants`, { method: 'POST', headers, body })
    t.equal(status, 200)
  }))
  for (let index = 0; index < 20; index++) names.push(`plant ${names.length}`)
}

async function listPlants ({ address }: Program): Promise<string[]> {
  const plants = await (await fetch(`${address}/plants`, { headers })).json() as Array<{ name: string }>
  return plants.map(({ name }) => name)
}

await t.test('kill -9 of the service loses nothing', async (t) => {
  await createPlants(service)
  process.kill(-(service.child.pid as number), 'SIGKILL')
  service = await start()
  t.strictSame(await listPlants(service), names)
})

await t.test('kill -9 of the service and of its database together loses nothing', async (t) => {
  await createPlants(service)
  const [supervisor] = await findChildren(service.child.pid) as [number]
  const server = await findServer(DATA_DIR)
  for (const pid of [supervisor, server, service.child.pid as number]) process.kill(pid, 'SIGKILL')
  service = await start()
  t.strictSame(await listPlants(service), names)
})

await t.test('the service survives its supervisor, and the next start replaces the server', async (t) => {
  const server = await findServer(DATA_DIR)
  const [supervisor] = await findChildren(service.child.pid) as [number]
  process.kill(supervisor, 'SIGKILL')
  t.strictSame(await listPlants(service), names)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
  t.equal(await findServer(DATA_DIR), server, 'the database server still runs')

  service = await start()
  t.not(await findServer(DATA_DIR), server)
  t.strictSame(await listPlants(service), names)
})

await t.test('the service ends with exit code 0 after its database was killed', async (t) => {
  process.kill(await findServer(DATA_DIR), 'SIGKILL')
  while ((await fetch(`${service.address}/readyz`)).status === 200);
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
  service = await start()
  t.strictSame(await listPlants(service), names)
})

await t.test('a stop leaves no database behind', async (t) => {
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
  t.notOk(isRunning(DATA_DIR))
})

await t.test('a start with a port in use stops the database again', async (t) => {
  const other = spawn(process.execPath, ['-e', `
    require('node:net').createServer()
      .listen(0, '127.0.0.1', function () { console.log(this.address().port) })`])
  t.teardown(() => { other.kill() })
  const [port] = await once(other.stdout, 'data')
  const settings = { ...environment, PORT: String(port).trim() }
  const { code, stdout, stderr } = await unmeasured.run(['serve'], settings)
  t.strictSame({ code, stderr }, { code: 1, stderr: `port ${String(port).trim()} on 127.0.0.1 is in use\n` })
  // On a busy machine, stdout also has lines about event-loop lag.
  t.notMatch(stdout, 'listening')
  t.notOk(isRunning(DATA_DIR))
})

await t.test('a stale server.json does not mislead the next start', async (t) => {
  const notes = join(DATA_DIR, 'server.json')
  const { url } = JSON.parse(await readFile(notes, 'utf8'))
  for (const text of ['{', JSON.stringify({ url, ownerPid: process.pid })]) {
    await writeFile(notes, text)
    const list = await unmeasured.run(['token', 'list', '--user', 'alice'], environment)
    t.match(list, { code: 0, stdout: /alice/, stderr: usesEmbedded }, text)
  }

  const killed = spawn(process.execPath, ['--version'])
  await once(killed, 'exit')
  // Make server.json name a running server that does not use this folder.
  await writeFile(notes, JSON.stringify({ url: process.env.TEST_DATABASE_URL, ownerPid: killed.pid }))
  service = await start()
  t.strictSame(await listPlants(service), names)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
})

await t.test('a start waits for a server that is about to end', async (t) => {
  const folder = join(DATA_DIR, 'postgresql')
  const { uid, gid } = await stat(folder)
  // `sleep` stands in for the old server. A start waits up to five seconds for that server to end.
  const leaving = spawn('sleep', ['2'], { uid, gid })
  await writeFile(join(folder, 'postmaster.pid'), `${leaving.pid}\n`)
  service = await start()
  t.equal(leaving.exitCode, 0, 'the old process has ended')
  t.strictSame(await listPlants(service), names)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
})
