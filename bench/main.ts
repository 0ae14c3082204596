// npm run bench -- [--seconds 5] [--rounds 5] [--only <parts>] [--large]
// Parts: list, create, delete, mix, single, unbounded, start, watched; all of them by default.
// BEFORE=<checkout> npm run bench -- --only before: this version beside that one.
import { once } from 'node:events'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import pg from 'pg'
import {
  before, contenders, fillCompileCache, found, service, watched, yardstick
} from './contenders.ts'
import { large } from './large.ts'
import { loads, type Load } from './measure.ts'
import { writePlot, writeSection } from './report.ts'
import {
  alongside, createDatabase, interrupt, startPostgres, withClient, type Contender, type Entry
} from './running.ts'
import { starts } from './starts.ts'
import { compare, latencyTable, processorTable, rateTable, throughput } from './throughput.ts'
import { unbounded } from './unbounded.ts'

const { values } = parseArgs({
  options: {
    seconds: { type: 'string', default: '5' },
    rounds: { type: 'string', default: '5' },
    only: { type: 'string', default: 'list,create,delete,mix,single,unbounded,start,watched' },
    large: { type: 'boolean', default: false }
  }
})
const duration = { seconds: Number(values.seconds), rounds: Number(values.rounds) }
const parts = values.only.split(',')

if (!found('wrk')) {
  console.error(`The benchmark needs wrk (in Debian and Homebrew under this name),
and Linux, whose /proc tells processor time.`)
  process.exit(2)
}
for (const signal of ['SIGINT', 'SIGTERM'] as const) process.on(signal, interrupt)

await using postgres = await startPostgres()
const version = await withClient(postgres.url('postgres'), async (client) =>
  (await client.query('show server_version')).rows[0].server_version)
const date = new Date().toISOString().slice(0, 10)
const conditions = `Medians of ${duration.rounds} rounds of ${duration.seconds} s, in square brackets \
the lowest and the highest of them, ${date}: ${availableParallelism()} cores for contender, \
generator and PostgreSQL ${version} (fsync on, default settings); Node ${process.version}.`

const bare = { name: 'bare', title: 'pgbench, the bare statements' }
const all = contenders()
fillCompileCache(service)
for (const { name } of [...all, bare]) await createDatabase(postgres.url(name))

const measured = loads.filter((load) => parts.includes(load))
if (measured.length > 0) {
  await alongside(postgres, all, async (running) => {
    await using stack = new AsyncDisposableStack()
    const entries: Entry[] = [...running]
    if (found('pgbench')) {
      const url = postgres.url(bare.name)
      const database = stack.adopt(new pg.Client(url), (client) => client.end())
      await database.connect()
      entries.push({ title: bare.title, url, database, postgres: postgres.pid })
    } else {
      console.log('without pgbench: not found')
    }
    const results = await throughput(entries, { loads: measured, connections: 64, ...duration })
    const { relative, bars } = compare(results, yardstick.title)
    const section = `![Requests per second](performance.svg)

64 connections. Requests per second, those of the straightforward Fastify service in the same round being 1:

${relative}

Processor time of a request in µs: in all, and the contender's + PostgreSQL's:

${processorTable(results)}

Requests per second:

${rateTable(results)}

Latency in ms, median and 99th percentile:

${latencyTable(results)}

${conditions}`
    const isWhole = measured.length === loads.length
    if (!isWhole) return console.log(section)
    writePlot('Requests per second, a straightforward Fastify + pg service = 1', bars)
    writeSection('Throughput', section)
  })
}

if (parts.includes('single')) {
  await alongside(postgres, [service, yardstick], async (entries) => {
    const results = await throughput(entries, { loads: ['list', 'create'], connections: 1, ...duration })
    writeSection('One request at a time', `Latency over one connection in ms, median and 99th percentile:

${latencyTable(results)}

${conditions}`)
  })
}

if (parts.includes('unbounded')) {
  const rows = await unbounded(postgres, [service, yardstick], duration)
  writeSection('A list of 100,000 plants', `Asked for without a limit. Memory growth is the peak while \
1 and 50 readers take 64 KiB every 40 ms each; \`/livez\` is asked all the time while lists are read \
at full speed.

${rows}

${conditions}`)
}

if (parts.includes('start')) {
  const { ready, memory } = await starts(postgres.url(service.name), service, 2 * duration.rounds)
  writeSection('Start and memory', `On a migrated database, from starting the process to \
the first 200 of \`/readyz\`: ${ready} ms.
Resident memory a second later, idle: ${memory} MiB.

${conditions}`)
}

/** Variants of this service in turn: their processor time, and their requests by those of the first. */
async function variants (chosen: Contender[], of: Load[]): Promise<string> {
  for (const { name } of chosen) {
    if (name !== service.name) await createDatabase(postgres.url(name))
  }
  let section = ''
  await alongside(postgres, chosen, async (entries) => {
    const results = await throughput(entries, { loads: of, connections: 64, ...duration })
    section = `64 connections. Processor time of a request in µs: in all, and the service's + PostgreSQL's:

${processorTable(results)}

Requests per second, those of the first in the same round being 1:

${compare(results, entries[0]?.title ?? '').relative}

${conditions}`
  })
  return section
}

if (parts.includes('watched')) {
  // Whatever is sent to it is well received.
  const collector = createServer((request, response) => {
    request.resume().on('end', () => response.end())
  }).listen(0, '127.0.0.1')
  await once(collector, 'listening')
  const { port } = collector.address() as AddressInfo
  const chosen = [service, ...watched(`http://127.0.0.1:${port}`)]
  writeSection('Metrics and traces', await variants(chosen, ['list', 'create']))
  collector.close().closeAllConnections()
}

if (parts.includes('before')) {
  console.log(await variants([before(process.env.BEFORE ?? '.'), service], loads))
}

if (values.large) {
  const results = await large(postgres, service, duration)
  writeSection('A large store', `64 connections, stores of different size. Requests per second:

${rateTable(results)}

Processor time of a request in µs: in all, and the service's + PostgreSQL's:

${processorTable(results)}

${conditions}`)
}
