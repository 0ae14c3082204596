// Callers who want the service to hold as much as it can, beside others who want little.
import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../support/processes.ts'
import { round } from '../support/table.ts'
import { sql } from '../support/database.ts'
import { unmeasured, type Program, type Scope } from '../support/program.ts'
import { createCaller, type Answer, type Caller } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

export interface HoardersOptions {
  connections: number
  /** How long others' answers are measured, before and meanwhile. */
  measureMs: number
}

const mostMemoryMiB = 400
const mostLiveMs = 500

interface Attack {
  text: (token: string) => string
  /** Of the connections, where fewer do. */
  share?: number
}

const get = (path: string, token = '') =>
  `GET ${path} HTTP/1.1\r\nHost: x\r\n${token && `Authorization: Bearer ${token}\r\n`}\r\n`

/** Each opens many connections, sends what makes the service work or hold, and reads nothing. */
const attacks: Record<string, Attack> = {
  '17 times the script of the page': { text: () => get('/docs/static/swagger-ui-bundle.js').repeat(17) },
  'as many heads as a piece has room for': { text: () => get('/livez').repeat(1800) },
  'a body one byte short': {
    text: (token) => {
      const body = `{"id":7,"name":"${'x'.repeat(1_000_000)}"`
      return `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer ${token}\r\n` +
        `Content-Type: application/json\r\nContent-Length: ${body.length + 1}\r\n\r\n${body}`
    }
  },
  'three lists longer than the system\'s buffers': {
    text: (token) => get('/plants', token).repeat(3),
    share: 0.1
  }
}

export async function hoarders (scope: Scope, postgres: Postgres, { connections, measureMs }: HoardersOptions): Promise<Report> {
  const [attacker = '', other = ''] = await createUsers(postgres.url, ['attacker', 'neighbour'])
  await sql(postgres.url, `insert into plants (owner, id, name, tag)
    select 'attacker', id, repeat('n', 512), repeat('t', 512) from generate_series(1, 20000) id
    union all select 'attacker', id, repeat('n', 1000000), null from generate_series(20001, 20010) id`)
  await sql(postgres.url, 'checkpoint')
  const report: Report = {
    title: `Hoarders: attacks from ${connections.toLocaleString('en')} connections that read nothing`,
    head: ['', 'others, median ms', '99th percentile, ms', '/livez at most, ms', 'memory before, MiB', 'at most', 'exit code of a stop meanwhile'],
    rows: [],
    breaches: [],
    misses: []
  }
  for (const [title, { text, share = 1 }] of Object.entries(attacks)) {
    const service = await serve(scope, { DATABASE_URL: postgres.url, DRAIN_DELAY: '0' })
    const caller = createCaller(service.address, other)
    scope.teardown(caller.close)
    await measure(caller, measureMs)
    const pid = service.child.pid as number
    const before = memoryMiB(pid)
    let peak = before
    const watch = setInterval(() => { peak = Math.max(peak, memoryMiB(pid)) }, 50)
    const sockets = await Promise.all(Array.from({ length: connections * share }, () =>
      openSocket(scope, service, text(attacker))))
    const { answers, probes } = await measure(caller, measureMs)
    clearInterval(watch)
    const stopped = once(service.child, 'exit')
    service.child.kill('SIGTERM')
    const [code] = await stopped
    for (const socket of sockets) socket.destroy()

    const failed = [...answers, ...probes].filter(({ status }) => ![200, 204].includes(status))
    const slowest = Math.max(...probes.map(({ ms }) => ms))
    report.rows.push([title, round(quantile(answers.map(({ ms }) => ms), 0.5)), round(quantile(answers.map(({ ms }) => ms), 0.99)), round(slowest), round(before), round(peak), String(code)])
    if (failed.length > 0) report.breaches.push(`${title}: ${failed.length} of the others' requests failed, such as ${failed[0]?.status} ${failed[0]?.body}`)
    if (peak > mostMemoryMiB) report.breaches.push(`${title}: memory ${round(peak)} MiB`)
    if (code !== 0) report.breaches.push(`${title}: a stop ended with ${code}`)
    if (slowest > mostLiveMs) report.misses.push(`${title}: /livez took ${round(slowest)} ms`)
  }
  return report
}

/** What another caller has of the service, one request after the other. */
async function measure (caller: Caller, ms: number): Promise<{ answers: Answer[], probes: Answer[] }> {
  const [answers, probes]: Answer[][] = [[], []]
  for (const end = performance.now() + ms; performance.now() < end; await delay(5)) {
    answers?.push(await caller.create({ id: 1, name: 'Monstera' }), await caller.list('?limit=20'), await caller.delete(1))
    probes?.push(await caller.get('/livez'))
  }
  return { answers: answers as Answer[], probes: probes as Answer[] }
}

async function openSocket (scope: Scope, { address }: Program, text: string | Buffer): Promise<Socket> {
  const { hostname, port } = new URL(address)
  const socket = connect(Number(port), hostname).pause()
  scope.teardown(() => { socket.destroy() })
  socket.on('error', () => {})
  await Promise.race([once(socket, 'connect'), once(socket, 'close')])
  socket.write(text)
  return socket
}
