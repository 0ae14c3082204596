// The fault suite in its short form; npm run test:faults has it in full, and measures.
import t from 'tap'
import type { Scope } from '../support/program.ts'
import { locks } from './locks.ts'
import { outages } from './outages.ts'
import { overloads } from './overload.ts'
import { startPostgres } from './postgres.ts'
import { readers } from './readers.ts'
import { printed, type Report } from './report.ts'
import { starts } from './starts.ts'
import { storm } from './storm.ts'

const seed = Date.now() % 1_000_000
const postgres = await startPostgres(t)

const scenarios: Record<string, (scope: Scope) => Promise<Report>> = {
  storm: (scope) => storm(scope, postgres, { seed, kills: 3 }),
  outages: (scope) => outages(scope, postgres, { lastsMs: 1500, watchMs: 1000, perSecond: 20, statementTimeoutMs: 500 }),
  starts: (scope) => starts(scope, postgres),
  locks: (scope) => locks(scope, postgres, { seed, rounds: 2 }),
  readers: (scope) => readers(scope, postgres, { plants: 50_000, characters: 200, stalledReaders: 20, halfOpenRequests: 50, measureMs: 500 }),
  overload: (scope) => overloads(scope, postgres, { bytesPerSecond: 25_000, measureMs: 1500 })
}
for (const [name, run] of Object.entries(scenarios)) {
  t.test(`${name}, seed ${seed}`, async (t) => {
    const report = await run(t)
    t.strictSame(report.breaches, [], printed(report))
  })
}
