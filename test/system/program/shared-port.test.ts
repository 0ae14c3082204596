// Tests processes that share a port. The kernel gives each new connection to one of them.
import { once } from 'node:events'
import { Agent, request, type IncomingMessage } from 'node:http'
import { json } from 'node:stream/consumers'
import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { freePort } from '../../support/free-port.ts'
import { unmeasured } from '../../support/program.ts'

const { serve, start } = unmeasured
const DATABASE_URL = await createDatabase(t)
const shared = { DATABASE_URL, REUSE_PORT: 'on' }

/** Requests /livez. By default, the request has a new connection. */
async function get (agent: Agent | false = false) {
  const sent = request(`${address}/livez`, { agent }).end()
  const [response] = await once(sent, 'response') as [IncomingMessage]
  await json(response)
  const { 'x-request-id': id, connection } = response.headers
  // A request id begins with an id of the process.
  return { status: response.statusCode, process: String(id).split('-')[0] as string, connection }
}

/** Requests /livez with 50 new connections. Returns the statuses and the processes of the responses. */
async function getOften () {
  const responses = await Promise.all(Array.from({ length: 50 }, () => get()))
  return {
    statuses: [...new Set(responses.map(({ status }) => status))],
    processes: [...new Set(responses.map(({ process }) => process))]
  }
}

const first = await serve(t, { ...shared, METRICS_PORT: '0' })
const { address } = first
const PORT = new URL(address).port

t.test('a process gets no connection of a shared port before it is ready', async (t) => {
  const { process } = await get()
  const withoutDatabase = `postgres://127.0.0.1:${await freePort()}/none`
  const { child } = start(['serve'], { ...shared, PORT, DATABASE_URL: withoutDatabase })
  t.teardown(() => { child.kill('SIGKILL') })
  for await (const chunk of child.stdout) if (String(chunk).includes('next attempt')) break
  t.strictSame(await getOften(), { statuses: [200], processes: [process] })
})

t.test('after SIGTERM, a process of a shared port serves only its open connections', async (t) => {
  const { process } = await get()
  const second = await serve(t, { ...shared, PORT, DRAIN_DELAY: '1s' })
  // Open connections until one of them belongs to the second process.
  let agent: Agent | undefined
  do {
    agent = new Agent({ keepAlive: true })
    t.teardown(() => agent?.destroy())
  } while ((await get(agent)).process === process)

  second.child.kill('SIGTERM')
  await second.logged('stopping')
  t.match(await get(agent), { status: 200, connection: 'close' })
  t.strictSame(await getOften(), { statuses: [200], processes: [process] })
  t.strictSame(await second.exited, [0, null])
})
