// npm run bench -- [--seconds 5] [--rounds 5] [--only <parts>] [--large]
// <parts> is a comma-separated list. By default, the benchmark runs these parts:
// latency, fresh, slowest, list, create, delete, mix, single, unbounded, pages, start, watched, jwt, transfer
// --large also measures a store of 10,000,000 plants.
// To compare this version with another checkout: BEFORE=<checkout> npm run bench -- --only before
// With BEFORE, the parts latency and fresh measure only these two versions, and write no file.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import pg from 'pg'
import {
  before, contenders, fillCompileCache, found, perCore, service, watched, yardstick
} from './contenders.ts'
import { jwts } from './jwt.ts'
import { describeLatency, measureFresh, measurePauses, measureWarm } from './latency.ts'
import { large } from './large.ts'
import { loads, type Load } from './measure.ts'
import { writePlot, writeSection } from './report.ts'
import {
  alongside, createDatabase, interrupt, startPostgres, withClient, type Contender, type Entry
} from './running.ts'
import { pages } from './pages.ts'
import { slowest } from './slowest/slowest.ts'
import { starts } from './starts.ts'
import { compare, latencyTable, processorTable, throughput } from './throughput.ts'
import { transfers } from './transfers.ts'
import { unbounded } from './unbounded.ts'

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '5' },
    rounds: { type: 'string', default: '5' },
    only: {
      type: 'string',
      default: 'latency,fresh,slowest,list,create,delete,mix,' +
        'single,unbounded,pages,start,watched,jwt,transfer'
    },
    large: { type: 'boolean', default: false }
  }
})
const duration = { seconds: Number(values.seconds), rounds: Number(values.rounds) }
const parts = values.only.split(',')

if (!found('wrk')) {
  console.error(`The benchmark needs wrk (a package of Debian and Homebrew)
and Linux, because it reads processor times from /proc.`)
  process.exit(2)
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, interrupt)

await using postgres = await startPostgres()
const version = await withClient(postgres.url('postgres'), async (client) =>
  (await client.query('show server_version')).rows[0].server_version)
const date = new Date().toISOString().slice(0, 10)

const bare = { name: 'bare', title: 'pgbench' }
const all = process.env.BEFORE === undefined ? contenders() : [service]
fillCompileCache(service)
for (const { name } of [...all, bare]) await createDatabase(postgres.url(name))

if (parts.includes('latency') || parts.includes('fresh')) {
  const { BEFORE } = process.env
  const chosen = BEFORE === undefined ? all.filter((each) => each !== perCore) : [service, before(BEFORE)]
  if (BEFORE !== undefined) await createDatabase(postgres.url('before'))
  const pauses = await measurePauses(postgres, service)
  const write = BEFORE === undefined ? writeSection : console.log
  if (parts.includes('latency')) {
    const results = await measureWarm(postgres, chosen, pauses, duration)
    write('Latency', describeLatency(results, service.title))
  }
  if (parts.includes('fresh')) {
    const results = await measureFresh(postgres, chosen, pauses.slice(0, 1), duration.rounds)
    write('Latency after a start', describeLatency(results, service.title))
  }
}

if (parts.includes('slowest')) {
  const [, pauses = {}] = await measurePauses(postgres, service)
  const chosen = [service, ...all.filter(({ name }) => name === 'floor')]
  writeSection('The slowest hundredth', await slowest(postgres, chosen, ['mix', 'create'], pauses))
}

const measured = loads.filter((load) => parts.includes(load))
if (measured.length > 0) {
  await alongside(postgres, all, async (running) => {
    await using stack = new AsyncDisposableStack()
    const entries: Entry[] = [...running]
    if (found('pgbench')) {
      const url = postgres.url(bare.name)
      const database = stack.adopt(new pg.Client(url), (client) => client.end())
      await database.connect()
      entries.push({ title: bare.title, pids: [], url, database, postgres: postgres.pid })
    } else {
      console.log('without pgbench: not found')
    }
    const results = await throughput(entries, { loads: measured, connections: 64, ...duration })
    const { rates, bars } = compare(results, yardstick.title)
    // The sessions of pgbench end before their processor time is read.
    const served = results.filter(({ title }) => title !== bare.title)
    const section = `![Requests per second](performance.svg)

With 64 connections, requests per second: how many times as many as ${yardstick.title} [lowest–highest round]:

${rates}

Processor time of a request in µs, of the contender and PostgreSQL together: how many times as much as this
service:

${processorTable(served)}

Latency in ms, median/99th percentile:

${latencyTable(served)}

Medians of ${duration.rounds} rounds of ${duration.seconds} s, ${date}: ${availableParallelism()} cores, \
PostgreSQL ${version}, Node ${process.version}.`
    if (measured.length < loads.length) return console.log(section)
    writePlot(`Requests per second, ${yardstick.title} = 1`, bars)
    writeSection('Throughput', section)
  })
}

if (parts.includes('single')) {
  await alongside(postgres, [service, yardstick], async (entries) => {
    const results = await throughput(entries, { loads: ['list', 'create'], connections: 1, ...duration })
    writeSection('One request at a time', `Latency over one connection in ms, median/99th percentile:

${latencyTable(results)}`)
  })
}

if (parts.includes('unbounded')) {
  const rows = await unbounded(postgres, [service, yardstick], duration)
  writeSection('A list of 100,000 plants', `Growth is the peak of memory minus the memory \
before the list, with 1 client and with 50 clients. Each client reads 64 KiB every 40 ms. \`/livez\` is \
measured while a client reads at full speed.

${rows}`)
}

if (parts.includes('pages')) {
  writeSection('Pages', await pages(postgres, service, duration))
}

if (parts.includes('start')) {
  const rows = await starts(postgres, [service, perCore], 2 * duration.rounds)
  writeSection('Start and memory', `On a migrated database: time until all processes are ready,
and the sum of their resident memory a second later, idle.

${rows}`)
}

if (parts.includes('transfer')) {
  const rows = await transfers(postgres, duration.rounds)
  writeSection('Import and export', `Import and export of 1,000,000 plants: median of the rounds \
[lowest–highest].

${rows}`)
}

/** Prints each rate as a multiple of the first variant's rate. Returns the processor times as Markdown. */
async function variants (chosen: Contender[], of: Load[]): Promise<string> {
  for (const { name } of chosen) {
    if (name !== service.name) await createDatabase(postgres.url(name))
  }
  let section = ''
  await alongside(postgres, chosen, async (entries) => {
    const results = await throughput(entries, { loads: of, connections: 64, ...duration })
    console.log(compare(results, entries[0]?.title ?? '').rates)
    section = `64 connections.
Processor time of a request in µs, of the service and PostgreSQL together: how many times the first row:

${processorTable(results)}`
  })
  return section
}

if (parts.includes('watched')) {
  const collector = createServer((request, response) => {
    request.resume().on('end', () => response.end())
  }).listen(0, '127.0.0.1')
  await once(collector, 'listening')
  const { port } = collector.address() as AddressInfo
  const chosen = [service, ...watched(`http://127.0.0.1:${port}`)]
  writeSection('Metrics and traces', await variants(chosen, ['list', 'create']))
  collector.close().closeAllConnections()
}

if (parts.includes('jwt')) {
  writeSection('JWTs', await jwts(postgres, duration))
}

if (parts.includes('before')) {
  console.log(await variants([before(process.env.BEFORE ?? '.'), service], loads))
}

if (values.large) {
  const results = await large(postgres, service, duration)
  writeSection('A large store', `64 connections.
Processor time of a request in µs, of the service and PostgreSQL together: how many times the first row:

${processorTable(results)}`)
}
