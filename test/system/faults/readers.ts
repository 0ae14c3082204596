import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { round } from '../../support/table.ts'
import { sql } from '../../support/database.ts'
import { memoryMiB } from '../../support/processes.ts'
import { unmeasured, type Program, type Scope } from '../../support/program.ts'
import { createCaller, type Answer, type Caller } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { openProxy, type Proxy } from './proxy.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

export interface ReadersOptions {
  plants: number
  /** Of a name. All together must be more than the system's socket buffers hold: some 10 MB. */
  characters: number
  stalledReaders: number
  halfOpenRequests: number
  /** How long others' answers are measured, before and meanwhile. */
  measureMs: number
}

const mostMemoryMiB = 256
const mostSlowdown = 4
const callers = 16

/** Readers of a long list who don't read, and callers who don't finish their requests, beside others who do. */
export async function readers (scope: Scope, postgres: Postgres, options: ReadersOptions): Promise<Report> {
  const { plants, characters, stalledReaders, halfOpenRequests, measureMs } = options
  const [collector = '', other = ''] = await createUsers(postgres.url, ['collector', 'other'])
  await sql(postgres.url, `insert into plants (owner, id, name, tag)
    select 'collector', id, rpad('Monstera deliciosa ' || id, ${characters}, '.'), 'indoor' from generate_series(1, ${plants}) id`)
  await sql(postgres.url, 'insert into plants (owner, id, name) select \'other\', id, \'Monstera\' from generate_series(1, 20) id')
  const proxy = await openProxy(scope, postgres.url)
  const service = await serve(scope, { DATABASE_URL: proxy.url })
  const caller = createCaller(service.address, other, { maxSockets: callers })
  scope.teardown(caller.close)
  const breaches: string[] = []
  const misses: string[] = []

  await measure(caller, Math.min(measureMs, 1000))
  const alone = await measure(caller, measureMs)
  const idle = memoryMiB(service.child.pid as number)

  const get = getPlants(collector)
  const post = `POST /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${other}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"id": 1, `
  const open = (text: string) => openSocket(scope, service, text)
  const stalled = await Promise.all(Array.from({ length: stalledReaders }, async () => {
    const socket = await open(get)
    await once(socket, 'readable')
    return socket
  }))
  const halfOpen = await Promise.all(Array.from({ length: halfOpenRequests }, (_, index) =>
    open(index % 2 === 0 ? get.slice(0, 40) : post)))
  const memory = watchMemory(service)
  const beside = await measure(caller, measureMs)
  const peak = memory.stop()
  const gone = [...stalled, ...halfOpen].filter((socket) => socket.closed).length
  for (const socket of [...stalled, ...halfOpen]) socket.destroy()

  const odd = [...alone, ...beside].filter(({ status }) => ![200, 204, 400, 404].includes(status))
  if (odd.length > 0) breaches.push(`${odd.length} of the others' requests failed, such as ${odd[0]?.status} ${odd[0]?.body}`)
  if (gone > 0) misses.push(`${gone} of the stalled and half-open ones were ended before the measurement was over`)
  const p99 = (answers: Answer[]) => quantile(answers.map(({ ms }) => ms), 0.99)
  if (p99(beside) > mostSlowdown * p99(alone)) misses.push(`p99 ${round(p99(beside) / p99(alone))} times the undisturbed one`)
  if (peak > mostMemoryMiB) misses.push(`memory ${round(peak)} MiB`)
  breaches.push(...await breakMidway(scope, proxy, service, collector))
  breaches.push(...await goOnTogether(scope, postgres, collector))

  return {
    title: 'Readers who stall, requests that never end',
    head: [`${callers} others`, 'answers a second', 'median, ms', '99th percentile, ms', 'service memory, MiB'],
    rows: [
      ['undisturbed', alone, idle] as const,
      [`beside ${stalledReaders} stalled readers of ${plants.toLocaleString('en')} plants and ${halfOpenRequests.toLocaleString('en')} half-open requests`, beside, peak] as const
    ].map(([title, answers, memory]) => [title, round(answers.length / measureMs * 1000), round(quantile(answers.map(({ ms }) => ms), 0.5)), round(p99(answers)), round(memory)]),
    breaches,
    misses
  }
}

/** What others do meanwhile, each waiting for an answer before the next request. */
async function measure (caller: Caller, ms: number): Promise<Answer[]> {
  const answers: Answer[] = []
  const end = performance.now() + ms
  await Promise.all(Array.from({ length: callers }, async (_, worker) => {
    const id = 1000 + worker
    while (performance.now() < end) {
      answers.push(await caller.create({ id, name: 'Monstera' }), await caller.list('?limit=20'), await caller.delete(id))
    }
  }))
  return answers
}

function watchMemory ({ child }: Program) {
  let peak = 0
  const timer = setInterval(() => { peak = Math.max(peak, memoryMiB(child.pid as number)) }, 200)
  return {
    stop (): number {
      clearInterval(timer)
      return peak
    }
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

/** What came, without what it looks like in the middle. */
async function readEnds (socket: Socket): Promise<{ start: string, end: string }> {
  let [start, end] = ['', '']
  try {
    for await (const chunk of socket) {
      start ||= String(chunk).slice(0, 100)
      end = (end + String(chunk)).slice(-100)
    }
  } catch {
    // Reset: so much the clearer.
  }
  return { start, end }
}

const isWhole = (end: string) => end.endsWith(']\r\n0\r\n\r\n')

/** The database is lost while a list is on its way: the caller can't take what came for the whole. */
async function breakMidway (scope: Scope, proxy: Proxy, service: Program, token: string): Promise<string[]> {
  const socket = await openSocket(scope, service, getPlants(token))
  await once(socket, 'readable')
  proxy.set('closed')
  proxy.cut()
  const { start, end } = await readEnds(socket)
  proxy.set('open')
  if (!start.startsWith('HTTP/1.1 200')) return [`the list didn't begin: ${start}`]
  return isWhole(end) ? ['a list that broke off looked whole'] : []
}

/** More lists under way than may wait, whose readers all go on at the same time: none of them is refused midway. */
async function goOnTogether (scope: Scope, postgres: Postgres, token: string): Promise<string[]> {
  const maxQueued = 2
  const service = await serve(scope, { DATABASE_URL: postgres.url, MAX_QUEUED: String(maxQueued) })
  const sockets: Socket[] = []
  while (sockets.length < 2 * maxQueued) {
    const socket = await openSocket(scope, service, getPlants(token))
    await once(socket, 'readable')
    const start = socket.read(12)
    socket.unshift(start)
    if (String(start) === 'HTTP/1.1 200') sockets.push(socket)
    // The others are still filling the system's buffers.
    else socket.destroy()
  }
  const ends = await Promise.all(sockets.map(readEnds))
  const broken = ends.filter(({ end }) => !isWhole(end))
  return broken.length > 0 ? [`${broken.length} of ${sockets.length} lists broke off when their readers went on`] : []
}
