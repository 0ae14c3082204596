// node bench/replacements.ts [20]: two processes share a port. Under load, replaces them one by one so many
// times, and prints each failed request. Half of the clients open a new connection for each request.
import { readFileSync } from 'node:fs'
import { unmeasured } from '../test/support/program.ts'
import { freePort } from '../test/support/free-port.ts'
import { createClient, describe, type HttpResponse } from '../test/system/faults/client.ts'
import { collector, createDatabase, startPostgres } from './running.ts'

const count = Number(process.argv[2] ?? 20)
await using postgres = await startPostgres()
await using stack = new AsyncDisposableStack()
const scope = { teardown: (end: () => unknown) => stack.defer(async () => { await end() }) }
await createDatabase(postgres.url('shared'))
const port = await freePort()
const start = () => unmeasured.serve(scope, {
  DATABASE_URL: postgres.url('shared'), PORT: String(port), REUSE_PORT: 'on', DRAIN_DELAY: '500ms'
}, 'listening')

const running = [await start(), await start()]
const over = new AbortController()

/** Starts clients, each with one request at a time. Resolves once `over` is aborted. */
async function load (keepAlive: boolean, firstId: number): Promise<HttpResponse[]> {
  const responses: HttpResponse[] = []
  await Promise.all(Array.from({ length: 8 }, async (_, index) => {
    const client = createClient(`http://127.0.0.1:${port}`, collector.token, { keepAlive })
    for (let id = firstId + index; !over.signal.aborted; id += 8) {
      responses.push(await client.create({ id, name: `plant ${id}` }), await client.list('?limit=10'))
      responses.push(await client.delete(id))
    }
    client.close()
  }))
  return responses
}

const loads = { 'kept connections': load(true, 0), 'new connections': load(false, 1_000_000) }
for (let replaced = 0; replaced < count; replaced++) {
  running.push(await start())
  const old = running.shift()
  old?.child.kill('SIGTERM')
  await old?.exited
}
console.log(`${count} replacements, net.ipv4.tcp_migrate_req =`,
  readFileSync('/proc/sys/net/ipv4/tcp_migrate_req', 'utf8').trim())
over.abort()
for (const [title, load] of Object.entries(loads)) {
  const responses = await load
  const failures = responses.filter(({ status }) => status !== 200 && status !== 204)
  console.log(`${title}: ${responses.length} requests, ${failures.length} failed`)
  for (const failure of failures) console.log(describe(failure))
}
