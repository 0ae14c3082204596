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
const [stalledReaders, halfOpenRequests] = [200, 1000]
const measureMs = 8000
const maxMemoryMiB = 256
const maxSlowdown = 4
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
  const get = getPlants(collector)
  const post = `POST /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${tokens[0]}\r\n` +
    'content-type: application/json\r\ncontent-length: 100\r\n\r\n{"id": 1, '
  const open = (text: string) => openSocket(scope, service, text)
  const stalled = await Promise.all(Array.from({ length: stalledReaders }, async () => {
    const socket = await open(get)
    await once(socket, 'readable')
    return socket
  }))
  const halfOpen = await Promise.all(Array.from({ length: halfOpenRequests }, (_, index) =>
    open(index % 2 === 0 ? get.slice(0, 40) : post)))
  const beside = await watch(measureMs)
  const gone = [...stalled, ...halfOpen].filter((socket) => socket.closed).length
  for (const socket of [...stalled, ...halfOpen]) socket.destroy()

  const p99 = ({ writes, lists }: typeof alone) => latency([...writes, ...lists], 0.99)
  const slowdown = p99(beside) / p99(alone)
  const crowd = `beside ${stalledReaders} stalled readers of ${plants} plants ` +
    `and ${halfOpenRequests} half-open requests`
  return {
    title: 'Stalled readers and unfinished requests',
    head: [`${others.length} others`, '99th percentile, ms', 'service memory, MiB'],
    rows: [
      ['alone', round(p99(alone)), round(alone.memory)],
      [crowd, round(p99(beside)), round(beside.memory)]
    ],
    breaches: [
      ...alone.faults, ...beside.faults,
      ...await breakMidway(scope, proxy, service, collector),
      ...await resumeTogether(scope, postgres, collector)
    ],
    misses: [
      ...gone > 0 ? [`${gone} stalled or half-open connections closed during the measurement`] : [],
      ...slowdown > maxSlowdown ? [`p99 is ${round(slowdown)} times the p99 before`] : [],
      ...beside.memory > maxMemoryMiB ? [`memory reached ${round(beside.memory)} MiB`] : []
    ]
  }
}

const getPlants = (token: string) =>
  `GET /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${token}\r\nconnection: close\r\n\r\n`

async function openSocket (scope: Scope, service: Program, text: string): Promise<Socket> {
  const { hostname, port } = new URL(service.address)
  const socket = connect(Number(port), hostname)
  scope.teardown(() => { socket.destroy() })
  socket.on('error', () => {})
  await once(socket, 'connect')
  socket.write(text)
  return socket
}

async function readEnds (socket: Socket): Promise<{ start: string, end: string }> {
  let [start, end] = ['', '']
  try {
    for await (const chunk of socket) {
      start ||= String(chunk).slice(0, 100)
      end = (end + String(chunk)).slice(-100)
    }
  } catch {
    // Expected: the service resets the connection to tell the client that the list is incomplete.
  }
  return { start, end }
}

const isComplete = (end: string) => end.endsWith(']\r\n0\r\n\r\n')

/** Cuts the database connections while the service sends a list. The response must not look complete. */
async function breakMidway (scope: Scope, proxy: Proxy, service: Program, token: string): Promise<string[]> {
  const socket = await openSocket(scope, service, getPlants(token))
  await once(socket, 'readable')
  proxy.set('closed')
  proxy.cut()
  const { start, end } = await readEnds(socket)
  proxy.set('open')
  if (!start.startsWith('HTTP/1.1 200')) return [`the list did not begin: ${start}`]
  return isComplete(end) ? ['an incomplete list looked complete'] : []
}

/** Stalls more lists than MAX_QUEUED, then reads all of them at once. The service must complete each list. */
async function resumeTogether (scope: Scope, postgres: Postgres, token: string): Promise<string[]> {
  const maxQueued = 2
  const service = await unmeasured.serve(scope, { DATABASE_URL: postgres.url, MAX_QUEUED: String(maxQueued) })
  const sockets: Socket[] = []
  while (sockets.length < 2 * maxQueued) {
    const socket = await openSocket(scope, service, getPlants(token))
    await once(socket, 'readable')
    const start = socket.read(12)
    socket.unshift(start)
    if (String(start) === 'HTTP/1.1 200') sockets.push(socket)
    // While the service sends earlier lists, it may reject this list. The loop then opens another socket.
    else socket.destroy()
  }
  const ends = await Promise.all(sockets.map(readEnds))
  const broken = ends.filter(({ end }) => !isComplete(end))
  if (broken.length === 0) return []
  return [`${broken.length} of ${sockets.length} lists were cut when their readers resumed`]
}
