import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { round } from '../../bench/report.ts'
import { sql } from '../support/database.ts'
import { serve, type Program, type Scope } from '../support/program.ts'
import { createCaller, type Answer } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { memoryMiB } from './process.ts'
import { openProxy, type Proxy } from './proxy.ts'
import { quantile, type Report } from './report.ts'

export interface ReadersOptions {
  plants: number
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
  const { plants, stalledReaders, halfOpenRequests, measureMs } = options
  const [collector = '', other = ''] = await createUsers(postgres.url, ['collector', 'other'])
  await sql(postgres.url, `insert into plants (owner, id, name, tag)
    select 'collector', id, 'Monstera deliciosa ' || id, 'indoor' from generate_series(1, ${plants}) id`)
  await sql(postgres.url, 'insert into plants (owner, id, name) select \'other\', id, \'Monstera\' from generate_series(1, 20) id')
  const proxy = await openProxy(scope, postgres.port)
  const service = await serve(scope, { DATABASE_URL: withPort(postgres.url, proxy.port) })
  const caller = createCaller(service.address, other, { maxSockets: callers })
  scope.teardown(caller.close)
  const breaches: string[] = []
  const misses: string[] = []

  await measure(caller, 1000)
  const alone = await measure(caller, measureMs)
  const idle = memoryMiB(service.child.pid as number)

  const { hostname, port } = new URL(service.address)
  const get = `GET /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${collector}\r\n\r\n`
  const post = `POST /plants HTTP/1.1\r\nhost: plants\r\nauthorization: Bearer ${other}\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"id": 1, `
  const open = async (text: string): Promise<Socket> => {
    const socket = connect(Number(port), hostname)
    scope.teardown(() => { socket.destroy() })
    socket.on('error', () => {})
    await once(socket, 'connect')
    socket.write(text)
    return socket
  }
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
  breaches.push(...await breakMidway(proxy, service, collector))

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

function withPort (url: string, port: number): string {
  const changed = new URL(url)
  changed.port = String(port)
  return changed.href
}

/** What others do meanwhile, each waiting for an answer before the next request. */
async function measure (caller: ReturnType<typeof createCaller>, ms: number): Promise<Answer[]> {
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

/** The database is lost while a list is on its way: whatever the caller speaks, it can't take what came for the whole. */
async function breakMidway (proxy: Proxy, service: Program, token: string): Promise<string[]> {
  const breaches: string[] = []
  for (const version of ['1.1', '1.0']) {
    const { hostname, port } = new URL(service.address)
    const socket = connect(Number(port), hostname)
    socket.write(`GET /plants HTTP/${version}\r\nhost: plants\r\nauthorization: Bearer ${token}\r\nconnection: close\r\n\r\n`)
    // More than the system's buffers hold is still to come.
    await once(socket, 'readable')
    proxy.set('closed')
    proxy.cut()
    let received = ''
    try {
      for await (const chunk of socket) received += chunk
    } catch {
      // Reset: so much the clearer.
    }
    proxy.set('open')
    const isWhole = version === '1.1' ? received.endsWith('\r\n0\r\n\r\n') : received.endsWith(']')
    if (isWhole) breaches.push(`HTTP/${version}: a list that broke off looked whole`)
    if (!received.startsWith('HTTP/1.1 200')) breaches.push(`HTTP/${version}: the list didn't begin: ${received.slice(0, 100)}`)
  }
  return breaches
}
