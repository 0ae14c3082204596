import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { memoryMiB } from '../../support/processes.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { createClient, describe, type Client, type HttpResponse } from './client.ts'
import { watchMemory } from './others.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy, type Proxy } from './proxy.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

export interface ReadersOptions {
  plants: number
  /** The length of a plant's name. All plants together must exceed the 10 MB that socket buffers hold. */
  characters: number
  stalledReaders: number
  halfOpenRequests: number
  measureMs: number
}

const maxMemoryMiB = 256
const maxSlowdown = 4
const clients = 16

/** Measures normal requests while other clients stop reading a long list or never finish a request. */
export async function readers (scope: Scope, postgres: Postgres, options: ReadersOptions): Promise<Report> {
  const { plants, characters, stalledReaders, halfOpenRequests, measureMs } = options
  const [collector = '', other = ''] = await createUsers(postgres.url, ['collector', 'other'])
  await sql(postgres.url, `insert into plants (owner, id, name, tag)
    select 'collector', id, rpad('Monstera deliciosa ' || id, ${characters}, '.'), 'indoor'
    from generate_series(1, ${plants}) id`)
  await sql(postgres.url,
    'insert into plants (owner, id, name) select \'other\', id, \'Monstera\' from generate_series(1, 20) id')
  const proxy = await openProxy(scope, postgres.url)
  const service = await serve(scope, { DATABASE_URL: proxy.url })
  const client = createClient(service.address, other, { maxSockets: clients })
  scope.teardown(client.close)
  const breaches: string[] = []
  const misses: string[] = []

  await measure(client, Math.min(measureMs, 1000))
  const alone = await measure(client, measureMs)
  const idle = memoryMiB(service.child.pid as number)

  const get = getPlants(collector)
  const post = `POST /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${other}\r\n` +
    'content-type: application/json\r\ncontent-length: 100\r\n\r\n{"id": 1, '
  const open = (text: string) => openSocket(scope, service, text)
  const stalled = await Promise.all(Array.from({ length: stalledReaders }, async () => {
    const socket = await open(get)
    await once(socket, 'readable')
    return socket
  }))
  const halfOpen = await Promise.all(Array.from({ length: halfOpenRequests }, (_, index) =>
    open(index % 2 === 0 ? get.slice(0, 40) : post)))
  const memory = watchMemory(service.child)
  const beside = await measure(client, measureMs)
  const peak = memory.peak()
  const gone = [...stalled, ...halfOpen].filter((socket) => socket.closed).length
  for (const socket of [...stalled, ...halfOpen]) socket.destroy()

  const unexpected = [...alone, ...beside].filter(({ status }) => ![200, 204, 400, 404].includes(status))
  const [first] = unexpected
  if (first) breaches.push(`${unexpected.length} requests of others failed, such as ${describe(first)}`)
  if (gone > 0) misses.push(`${gone} stalled or half-open connections closed during the measurement`)
  const p99 = (responses: HttpResponse[]) => quantile(responses.map(({ ms }) => ms), 0.99)
  if (p99(beside) > maxSlowdown * p99(alone)) {
    misses.push(`p99 is ${round(p99(beside) / p99(alone))} times the p99 before`)
  }
  if (peak > maxMemoryMiB) misses.push(`memory reached ${round(peak)} MiB`)
  breaches.push(...await breakMidway(scope, proxy, service, collector))
  breaches.push(...await resumeTogether(scope, postgres, collector))

  const crowd = `beside ${stalledReaders} stalled readers of ${plants} plants ` +
    `and ${halfOpenRequests} half-open requests`
  const row = (title: string, responses: HttpResponse[], memory: number) =>
    [title, round(responses.length / measureMs * 1000), round(p99(responses)), round(memory)]
  return {
    title: 'Stalled readers and unfinished requests',
    head: [`${clients} others`, 'responses a second', '99th percentile, ms', 'service memory, MiB'],
    rows: [row('alone', alone, idle), row(crowd, beside, peak)],
    totals: { requests: alone.length + beside.length },
    breaches,
    misses
  }
}

async function measure (client: Client, ms: number): Promise<HttpResponse[]> {
  const responses: HttpResponse[] = []
  const end = performance.now() + ms
  await Promise.all(Array.from({ length: clients }, async (_, worker) => {
    const id = 1000 + worker
    while (performance.now() < end) {
      responses.push(await client.create({ id, name: 'Monstera' }))
      responses.push(await client.list('?limit=20'), await client.delete(id))
    }
  }))
  return responses
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
  const service = await serve(scope, { DATABASE_URL: postgres.url, MAX_QUEUED: String(maxQueued) })
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
