// Runs the full fault suite:
//   npm run test:faults -- [--seed 1] [--only storm,attacks,…] [--row 3] [--behind nginx]
// `--row` selects an attack by its position in attack-table.ts, from 1, or by the beginning of its title.
// `--behind` sends the attacks through nginx or haproxy with the file in deploy/. A path selects a program.
import { parseArgs } from 'node:util'
import type { Scope } from '../../support/program.ts'
import { attacks } from './attacks.ts'
import { bodies } from './bodies.ts'
import { imports } from './imports.ts'
import { outages } from './outages.ts'
import { overload } from './overload.ts'
import { startPostgres, type Postgres } from './postgres.ts'
import { readers } from './readers.ts'
import { printed, type Report } from './report.ts'
import { revocations } from './revocations.ts'
import { soak } from './soak.ts'
import { starts } from './starts.ts'
import { storm } from './storm.ts'

const scenarios: Record<string, (scope: Scope, postgres: Postgres, seed: number) => Promise<Report>> = {
  storm: (scope, postgres, seed) => storm(scope, postgres, { seed, kills: 20, writes: 500 }),
  // Scenarios that kill PostgreSQL run before `starts`, which keeps a database connection open.
  imports,
  outages: (scope, postgres) =>
    outages(scope, postgres, { lastsMs: 8000, watchMs: 3000, perSecond: 100, statementTimeoutMs: 5000 }),
  starts,
  revocations,
  readers,
  bodies,
  overload,
  // `restMs` gives the service time to collect garbage after an attack.
  attacks: (scope, postgres) => attacks(scope, postgres, {
    share: 1, rows: values.row, watchMs: 8000, restMs: 12_000, behind: values.behind
  }),
  soak
}
const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    only: { type: 'string', default: Object.keys(scenarios).join() },
    row: { type: 'string', multiple: true },
    behind: { type: 'string' }
  }
})

const names = values.only.split(',')
const unknown = names.filter((name) => !(name in scenarios))
if (unknown.length > 0) {
  throw new Error(`--only: expected ${Object.keys(scenarios).join()}, got ${unknown.join()}`)
}
const seed = Number(values.seed)
console.log(`seed ${seed}\n`)
await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => stack.defer(async () => { await work() }) }
const postgres = await startPostgres(scope)
for (const [name, run] of Object.entries(scenarios)) {
  if (!names.includes(name)) continue
  const report = await run(scope, postgres, seed)
  console.log(printed(report))
  if (report.breaches.length > 0 || report.misses.length > 0) process.exitCode = 1
}
