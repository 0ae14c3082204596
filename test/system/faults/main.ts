// Runs the full fault suite:
//   npm run test:faults -- [--seed 1] [--only storm,attacks,…] [--row 3] [--behind nginx] [--idle 3000]
// `--row` selects an attack by its number. `--behind` sends the attacks through nginx or haproxy. `--idle`
// opens idle connections beside each attack.
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
  attacks: (_scope, postgres) =>
    attacks(postgres, {
      share: 1, watchMs: 8000, restMs: 12_000, behind: values.behind, idle: Number(values.idle)
    }, values.row),
  soak
}
const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    only: { type: 'string', default: Object.keys(scenarios).join() },
    row: { type: 'string', multiple: true },
    behind: { type: 'string' },
    idle: { type: 'string', default: '0' }
  }
})
const names = values.only.split(',')
const chosen = Object.entries(scenarios).filter(([name]) => names.includes(name))
if (chosen.length < names.length) throw new Error(`--only: expected ${Object.keys(scenarios).join()}`)
const seed = Number(values.seed)
console.log(`seed ${seed}\n`)
await using stack = new AsyncDisposableStack()
const scope: Scope = { teardown: (work) => stack.defer(work) }
const postgres = await startPostgres(scope)
for (const [, run] of chosen) {
  const report = await run(scope, postgres, seed)
  console.log(printed(report))
  if (report.breaches.length > 0 || report.misses.length > 0) process.exitCode = 1
}
