// Measures figures for docs/scaling.md: the latency of requests when a user has many plants, and PostgreSQL's
// memory for idle connections. Usage:
// node bench/scale.ts [--plants 10000000] [--connections 1000]
import { readFileSync } from 'node:fs'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { buildApp } from '../src/app.ts'
import { createTokens } from '../src/access/tokens.ts'
import { readConfig } from '../src/config.ts'
import { openDatabase } from '../src/database/database.ts'
import { makeServer, runServer } from '../test/system/faults/postgres.ts'
import { quantile } from '../test/system/faults/report.ts'
import { sql } from '../test/support/database.ts'
import { findChildren } from '../test/support/processes.ts'
import { round, table } from '../test/support/table.ts'

const { values } = parseArgs({
  options: {
    plants: { type: 'string', default: '10000000' },
    connections: { type: 'string', default: '1000' }
  }
})
const [plants, connections] = [Number(values.plants), Number(values.connections)]
const requests = 500

await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => { stack.defer(async () => { await work() }) } }
const { url, command } = await makeServer(scope)
await runServer(scope, { ...command, args: [...command.args, '-c', `max_connections=${connections + 100}`] })
const config = readConfig({ DATABASE_URL: url, LOG_LEVEL: 'silent' })
const database = openDatabase({ url, statementTimeoutMs: 5000 })
stack.defer(() => database.close())
const app = await buildApp({ config, database, lifecycle: { stopping: false } })
stack.defer(() => app.close())

/** Sends requests one after the other. Returns the median and the 99th percentile of the latency in ms. */
async function measure (
  ask: (index: number) => Promise<{ statusCode: number, body: string }>
): Promise<string> {
  const times = []
  for (let index = 0; index < requests; index++) {
    const start = performance.now()
    const { statusCode, body } = await ask(index)
    if (statusCode >= 300) throw new Error(`${statusCode} ${body}`)
    times.push(performance.now() - start)
  }
  return `${round(quantile(times, 0.5))}, ${round(quantile(times, 0.99))}`
}

async function measureOwner (owner: string) {
  const headers = {
    authorization: `Bearer ${await createTokens(database).create({ user: owner, readOnly: false })}`,
    'content-type': 'application/json'
  }
  const idOf = (index: number) => 2 * Math.floor((index + 0.5) * plants / requests) + 1
  return [
    await measure(() => app.inject({ url: '/plants?limit=20', headers })),
    await measure((index) => app.inject({
      method: 'POST', url: '/plants', headers, payload: { id: idOf(index), name: 'Fern' }
    })),
    await measure((index) => app.inject({ method: 'DELETE', url: `/plants/${idOf(index)}`, headers }))
  ]
}

// These plants have even ids, because `measureOwner` creates plants with odd ids.
for (let from = 0; from < plants; from += 1_000_000) {
  await sql(url, `insert into plants (owner, id, name, tag)
    select 'giant', 2 * n, 'Monstera deliciosa', 'tropical' from generate_series($1::int, $2::int) as n`,
  [from, Math.min(from + 1_000_000, plants) - 1])
}
await sql(url, `insert into plants (owner, id, name)
  select 'dwarf', 2 * n, 'Fern' from generate_series(1, 20) as n`)
await sql(url, 'vacuum analyze plants')
await sql(url, 'checkpoint')
const [size] = await sql(url, "select pg_total_relation_size('plants')::float8 as bytes")
const bytesEach = round(size?.bytes as number / plants)
console.log(`One owner with ${plants} plants, ${bytesEach} bytes each with the index:\n`)
console.log(table(['median, 99th percentile, ms', 'list 20', 'create', 'delete'], [
  ['owner of 20', ...await measureOwner('dwarf')],
  [`owner of ${plants}`, ...await measureOwner('giant')]
]))

const dataDir = command.args[command.args.indexOf('-D') + 1]
const postmaster = Number(readFileSync(`${dataDir}/postmaster.pid`, 'utf8').split('\n', 1)[0])

/** Returns the proportional set size (PSS): of a memory page that n processes share, PSS counts 1/n. */
const proportionalKiB = (pid: number) =>
  Number(/^Pss: +(\d+)/m.exec(readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8'))?.[1])

async function memoryMiB (): Promise<number> {
  const pids = [postmaster, ...await findChildren(postmaster)]
  return pids.reduce((sum, pid) => sum + proportionalKiB(pid), 0) / 1024
}

const before = [await memoryMiB(), ...await measureOwner('dwarf')]
const list = 'select name, tag from plants where owner = $1 order by id limit 20'
const clients: pg.Client[] = []
for (let opened = 0; opened < connections; opened++) {
  const client = new pg.Client(url)
  await client.connect()
  // Prepare a statement, as the service does. The backend keeps memory for a prepared statement, even when
  // the connection is idle.
  await client.query({ name: 'list', text: list, values: ['dwarf'] })
  clients.push(client)
}
stack.defer(async () => { await Promise.all(clients.map((client) => client.end())) })
const after = [await memoryMiB(), ...await measureOwner('dwarf')]
console.log(`\n${connections} connections with nothing to do:\n`)
console.log(table(['', 'memory of PostgreSQL, MiB', 'list 20', 'create', 'delete'], [
  ['without', round(before[0] as number), ...before.slice(1)],
  ['beside them', round(after[0] as number), ...after.slice(1)]
]))
