import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { createClient } from './client.ts'
import { observe } from './others.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy, type Proxy } from './proxy.ts'
import { latency, type Report } from './report.ts'

/** All plants together must exceed the 10 MB that socket buffers hold. */
const [plants, nameLength] = [300_000, 30]
const [stalledReaders, halfOpen] = [200, 1000]
const [measureMs, maxMemoryMiB, maxSlowdown] = [8000, 256, 4]
const others = Array.from({ length: 16 }, (_, index) => `other ${index}`)

/** Measures normal requests while other clients stop reading a long list or never finish a request. */
export async function readers (scope: Scope, postgres: Postgres): Promise<Report> {
  const [collector = '', ...tokens] = await createUsers(postgres.url, ['collector', ...others])
  await sql(postgres.url, `insert into plants (owner, id, name, tag)
    select 'collector', id, rpad('Monstera deliciosa ' || id, ${nameLength}, '.'), 'indoor'
    from generate_series(1, ${plants}) id`)
  const proxy = await openProxy(scope, postgres.url)
  const service = await unmeasured.serve(scope, { DATABASE_URL: proxy.url })
  const clients = tokens.map((token) => createClient(service.address, token))
  scope.teardown(() => { for (const client of clients) client.close() })
  const watch = (ms: number) => observe(service, [service.address], clients, 'Monstera', ms)

  await watch(1000)
  const alone = await watch(measureMs)
  const parts = [
    'GET /plants HTTP/1.1\r\nhost: plants\r\nauth',
    `POST /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${tokens[0]}\r\n` +
      'content-type: application/json\r\ncontent-length: 100\r\n\r\n{"id": 1, '
  ]
  const sockets = await Promise.all([
    ...Array.from({ length: stalledReaders }, async () => (await openList(service, collector)).socket),
    ...Array.from({ length: halfOpen }, (_, index) => openSocket(service, parts[index % 2] as string))
  ])
  const beside = await watch(measureMs)
  const gone = sockets.filter((socket) => socket.closed).length
  for (const socket of sockets) socket.destroy()

  const p99 = ({ writes, lists }: typeof alone) => latency([...writes, ...lists], 0.99)
  const slowdown = p99(beside) / p99(alone)
  const crowd = `${stalledReaders} stalled readers of ${plants} plants and ${halfOpen} half-open requests`
  const row = (title: string, seen: typeof alone) => [title, round(p99(seen)), round(seen.memory)]
  return {
    title: 'Stalled readers and unfinished requests',
    head: [`${others.length} others`, '99th percentile, ms', 'service memory, MiB'],
    rows: [row('alone', alone), row(`beside ${crowd}`, beside)],
    breaches: [
      ...alone.faults, ...beside.faults,
      ...await breakMidway(proxy, service, collector),
      ...await resumeTogether(scope, postgres, collector)
    ],
    misses: [
      ...gone > 0 ? [`${gone} stalled or half-open connections closed during the measurement`] : [],
      ...slowdown > maxSlowdown ? [`p99 is ${round(slowdown)} times the p99 before`] : [],
      ...beside.memory > maxMemoryMiB ? [`memory reached ${round(beside.memory)} MiB`] : []
    ]
  }
}

/** The socket closes at the latest when the service ends. */
async function openSocket ({ address }: Program, text: string): Promise<Socket> {
  const { hostname, port } = new URL(address)
  const socket = connect(Number(port), hostname).on('error', () => {})
  await once(socket, 'connect')
  socket.write(text)
  return socket
}

/** Requests a list. Waits for the first part of the response, and does not read further. */
async function openList (service: Program, token: string) {
  const socket = await openSocket(service,
    `GET /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${token}\r\nconnection: close\r\n\r\n`)
  await once(socket, 'readable')
  const start = socket.read(12)
  socket.unshift(start)
  return { socket, isList: String(start) === 'HTTP/1.1 200' }
}

/** Reads the rest of the response. Returns whether the list is complete. */
async function isComplete (socket: Socket): Promise<boolean> {
  let end = ''
  try {
    for await (const chunk of socket) end = (end + String(chunk)).slice(-100)
  } catch {
    // Expected: the service resets the connection to tell the client that the list is incomplete.
  }
  return end.endsWith(']\r\n0\r\n\r\n')
}

/** Cuts the database connections while the service sends a list. The response must not look complete. */
async function breakMidway (proxy: Proxy, service: Program, token: string): Promise<string[]> {
  const { socket, isList } = await openList(service, token)
  proxy.set('closed')
  proxy.cut()
  const looksComplete = await isComplete(socket)
  proxy.set('open')
  if (!isList) return ['the list did not begin']
  return looksComplete ? ['an incomplete list looked complete'] : []
}

/** Stalls more lists than MAX_QUEUED, then reads all of them at once. The service must complete each list. */
async function resumeTogether (scope: Scope, postgres: Postgres, token: string): Promise<string[]> {
  const maxQueued = 2
  const service = await unmeasured.serve(scope, { DATABASE_URL: postgres.url, MAX_QUEUED: String(maxQueued) })
  const sockets: Socket[] = []
  while (sockets.length < 2 * maxQueued) {
    const { socket, isList } = await openList(service, token)
    if (isList) sockets.push(socket)
    // While the service sends earlier lists, it may reject this list. The loop then opens another socket.
    else socket.destroy()
  }
  const cut = (await Promise.all(sockets.map(isComplete))).filter((isWhole) => !isWhole).length
  return cut === 0 ? [] : [`${cut} of ${sockets.length} lists were cut when their readers resumed`]
}
