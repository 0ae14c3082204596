// npm run bench -- [--seconds 5] [--rounds 5] [--only list,create,delete,mix,single,unbounded,start] [--large]
import { availableParallelism } from 'node:os'
import { setTimeout as delay } from 'node:timers/promises'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { collector, contenders, createDatabase, found, interrupt, service, start, startPostgres, withClient, yardstick, type Contender } from './contenders.ts'
import { loads, median, memoryMiB } from './measure.ts'
import { round, table } from '../test/support/table.ts'
import { writePlot, writeSection } from './report.ts'
import { compare, keepStore, resultTable, throughput, type Entry } from './throughput.ts'
import { fill, unbounded } from './unbounded.ts'

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '5' },
    rounds: { type: 'string', default: '5' },
    only: { type: 'string', default: 'list,create,delete,mix,single,unbounded,start' },
    large: { type: 'boolean', default: false }
  }
})
const duration = { seconds: Number(values.seconds), rounds: Number(values.rounds) }
const parts = values.only.split(',')

if (!found('wrk')) {
  console.error('The benchmark needs wrk (in Debian and Homebrew under this name), and Linux, whose /proc tells processor time.')
  process.exit(2)
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, interrupt)

await using postgres = await startPostgres()
const version = await withClient(postgres.url('postgres'), async (client) => (await client.query('show server_version')).rows[0].server_version)
const conditions = `Medians of ${duration.rounds} rounds of ${duration.seconds} s, ${new Date().toISOString().slice(0, 10)}: ` +
  `${availableParallelism()} cores for contender, generator and PostgreSQL ${version} (fsync on, default settings); Node ${process.version}.`

type Part = Entry & { pid: number }

/** Runs contenders side by side, each on the database of its name, while `work` measures them. */
async function alongside (chosen: Contender[], work: (running: Part[]) => Promise<void>) {
  await using stack = new AsyncDisposableStack()
  const running: Part[] = []
  for (const contender of chosen) {
    const { pid, url } = stack.use(await start(contender, postgres.url(contender.name)))
    const database = stack.adopt(new pg.Client(postgres.url(contender.name)), (client) => client.end())
    await database.connect()
    running.push({ title: contender.title, pid, url, database, pids: [pid, postgres.pid] })
  }
  await work(running)
}

const bare = { name: 'bare', title: 'pgbench, the bare statements' }
const all = contenders()
for (const { name } of [...all, bare]) await createDatabase(postgres.url(name))

const measured = loads.filter((load) => parts.includes(load))
if (measured.length > 0) {
  await alongside(all, async (entries) => {
    await using stack = new AsyncDisposableStack()
    if (found('pgbench')) {
      const database = stack.adopt(new pg.Client(postgres.url(bare.name)), (client) => client.end())
      await database.connect()
      entries = [...entries, { title: bare.title, url: postgres.url(bare.name), database, pid: postgres.pid, pids: [postgres.pid], bare: true }]
    } else {
      console.log('without pgbench: not found')
    }
    const results = await throughput(entries, { loads: measured, connections: 64, ...duration })
    const { relative, bars } = compare(results, yardstick.title)
    const isWhole = measured.length === loads.length
    if (isWhole) writePlot('Requests per second, a straightforward Fastify + pg service = 1', bars)
    const section = `![Requests per second](performance.svg)

64 connections. Requests per second relative to the straightforward Fastify service; in brackets the processor time of a request in µs, service and PostgreSQL together:

${relative}

Requests per second; in brackets their latency in ms, median and 99th percentile:

${resultTable(results, ({ perSecond, p50, p99 }) => `${round(perSecond)} (${round(p50)}, ${round(p99)})`)}

${conditions}`
    if (isWhole) writeSection('Throughput', section)
    else console.log(section)
  })
}

if (parts.includes('single')) {
  await alongside([service, yardstick], async (entries) => {
    const results = await throughput(entries, { loads: ['list', 'create'], connections: 1, ...duration })
    writeSection('One request at a time', `Latency over one connection in ms, median and 99th percentile:

${resultTable(results, ({ p50, p99 }) => `${round(p50)}, ${round(p99)}`)}

${conditions}`)
  })
}

if (parts.includes('unbounded')) {
  await alongside([service, yardstick], async (entries) => {
    const rows = []
    for (const { title, database, pid, url } of entries) {
      await database.query(fill(collector.username))
      await database.query('vacuum analyze plants')
      rows.push([title, ...Object.values(await unbounded(pid, url, collector.token, duration)).map(round)])
    }
    writeSection('A list of 100,000 plants', `Asked for without a limit. Memory growth is the peak while 1 and 50 readers take 64 KiB every 40 ms each; \`/livez\` is asked all the time while lists are read at full speed.

${table(['', 'first byte, ms', 'whole list, ms', 'growth, 1 slow reader, MiB', '50 slow readers, MiB', '/livez p99, ms', 'max, ms'], rows)}

${conditions}`)
  })
}

if (parts.includes('start')) {
  const starts: { startMs: number, memory: number }[] = []
  for (let count = 0; count < 2 * duration.rounds; count++) {
    await using running = await start(service, postgres.url(service.name))
    await delay(1000)
    starts.push({ startMs: running.startMs, memory: memoryMiB(running.pid, 'VmRSS') })
  }
  writeSection('Start and memory', `On a migrated database, from starting the process to the first 200 of \`/readyz\`: ${round(median(starts.map(({ startMs }) => startMs)))} ms.
Resident memory a second later, idle: ${round(median(starts.map(({ memory }) => memory)))} MiB.

${conditions}`)
}

if (values.large) {
  // In both stores 1,000 tokens are in use: twenty to a user in the small one, one to every 500th user in the large one.
  const stores = [
    { ...service, name: 'small', title: '1,000 plants', users: 50, username: (token: number) => String(token % 50) },
    { ...service, name: 'large', title: '10,000,000 plants', users: 500_000, username: (token: number) => String(token % 1000 * 500) }
  ]
  for (const { name, users, username } of stores) {
    await createDatabase(postgres.url(name), username)
    await withClient(postgres.url(name), (client) => client.query(`insert into plants (owner, id, name, tag)
      select owner::text, id, 'Monstera deliciosa ' || id, 'indoor' from generate_series(0, ${users - 1}) owner, generate_series(1, 20) id order by 1, 2`))
  }
  await alongside(stores, async (entries) => {
    const results = await throughput(entries, { loads: ['list', 'create'], connections: 64, ...duration, refill: keepStore })
    writeSection('A large store', `64 connections. Requests per second in stores of different size; in brackets the processor time of a request in µs, service and PostgreSQL together:

${resultTable(results, ({ perSecond, processor }) => `${round(perSecond)} (${round(processor)})`)}

${conditions}`)
  })
}
