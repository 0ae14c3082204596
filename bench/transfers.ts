// Measures how fast a million plants are imported and exported, by the service's commands and by psql. Also
// measures the latency of requests during an import.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { createWriteStream } from 'node:fs'
import http from 'node:http'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { setTimeout as delay } from 'node:timers/promises'
import { memoryMiB } from '../test/support/processes.ts'
import { table } from '../test/support/table.ts'
import { found, service } from './contenders.ts'
import { quantile, spread } from './measure.ts'
import { collector, createDatabase, folder, start, withClient, type Postgres } from './running.ts'

const plants = 1_000_000
const file = (name: string) => join(folder, name)

const own = (...words: string[]) => [...service.command, ...words]

interface Transfer { title: string, command: string[], into?: boolean }

function * ndjson () {
  for (let id = 1; id <= plants; id++) yield `{"id":${id},"name":"Monstera deliciosa ${id}","tag":"indoor"}\n`
}

/** Runs a command. Returns the plants per second and the peak memory of the process in MiB. */
async function timed ([program = '', ...args]: string[], url: string) {
  const began = performance.now()
  const env = { ...process.env, ...service.env, DATABASE_URL: url }
  const child = spawn(program, args, { env, stdio: 'ignore' })
  let peak = 0
  const timer = setInterval(() => {
    try {
      peak = memoryMiB(child.pid ?? 0, 'VmHWM') || peak
    } catch {
      // The process has ended.
    }
  }, 20)
  const [code] = await once(child, 'exit')
  clearInterval(timer)
  if (code !== 0) throw new Error(`${program} ${args.join(' ')}: exit code ${code}`)
  return { rate: plants / (performance.now() - began) * 1000, peak }
}

export async function transfers (postgres: Postgres, rounds: number): Promise<string> {
  const url = postgres.url('transfers')
  await createDatabase(url)
  await pipeline(Readable.from(ndjson()), createWriteStream(file('plants.ndjson')))
  const psql = (copy: string) => ['psql', '--no-psqlrc', url, '--command', `\\copy ${copy}`]
  const query = '(select id, name, tag from plants where owner = \'ann\' order by id)'
  const all: Transfer[] = [
    { title: 'import, NDJSON', command: own('import', 'ann', file('plants.ndjson')), into: true },
    { title: 'import again: all exist', command: own('import', 'ann', file('plants.ndjson')) },
    { title: 'export, NDJSON', command: own('export', 'ann', file('out.ndjson')) },
    { title: 'export, CSV', command: own('export', 'ann', file('out.csv')) },
    { title: 'import, CSV', command: own('import', 'ann', file('out.csv')), into: true },
    ...found('psql')
      ? [
          { title: 'psql \\copy … to', command: psql(`${query} to '${file('copy.csv')}' csv`) },
          {
            title: 'psql \\copy … from',
            command: psql(`copied (id, name, tag) from '${file('copy.csv')}' csv`),
            into: true
          }
        ]
      : []
  ]
  // The CSV file that psql imports has no column for the owner, so the table needs a default owner.
  await withClient(url, (client) => client.query(
    "create table copied (like plants including all); alter table copied alter owner set default 'ann'"))
  const figures = all.map(() => ({ rates: [] as number[], peaks: [] as number[] }))
  for (let round = 0; round < rounds; round++) {
    for (const [index, { command, into }] of all.entries()) {
      if (into) await withClient(url, (client) => client.query('truncate plants, copied'))
      if (command.includes('psql') && !into) await timed(own('import', 'ann', file('plants.ndjson')), url)
      const { rate, peak } = await timed(command, url)
      figures[index]?.rates.push(Math.round(rate / 1000))
      figures[index]?.peaks.push(peak)
    }
  }
  const rows = all.map(({ title }, index) =>
    [title, spread(figures[index]?.rates ?? []), spread(figures[index]?.peaks ?? [])])
  const latencies = await besideImports(url)
  return `${table(['', 'thousand plants a second', 'peak of memory, MiB'], rows)}

99th percentile of lists of 20 plants, one after the other: ${latencies.join(', ')}.`
}

/** Measures the latency of short lists: first without an import, then during three imports. */
async function besideImports (url: string) {
  await withClient(url, (client) => client.query(`insert into plants (owner, id, name, tag)
    select '${collector.username}', id, 'Monstera', 'indoor' from generate_series(1, 20) id`))
  await using running = await start(service, url)
  const options = [[], ['--chunk', '10000']]
  const latencies = [`${await latency(running.url, delay(8000))} without an import`]
  for (const each of options) {
    await withClient(url, (client) => client.query("delete from plants where owner = 'ann'"))
    const imported = timed(own('import', 'ann', file('plants.ndjson'), ...each), url)
    latencies.push(`${await latency(running.url, imported)} beside \`${['import', ...each].join(' ')}\``)
  }
  return latencies
}

/** Returns the 99th percentile, such as "4.1 ms". */
async function latency (url: string, until: Promise<unknown>): Promise<string> {
  const agent = new http.Agent({ keepAlive: true })
  const headers = { authorization: `Bearer ${collector.token}` }
  const taken: number[] = []
  const state = { isOver: false }
  const ended = until.finally(() => { state.isOver = true })
  while (!state.isOver) {
    const began = performance.now()
    const request = http.get(`${url}/plants`, { agent, headers })
    const [response] = await once(request, 'response') as [http.IncomingMessage]
    await once(response.resume(), 'end')
    taken.push(performance.now() - began)
  }
  await ended
  agent.destroy()
  return `${quantile(taken, 0.99).toFixed(1)} ms`
}
