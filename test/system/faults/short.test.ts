// Runs four scenarios of `npm run test:faults` in a short form. Ignores `misses` (times and sizes), because
// they depend on the load of the machine.
import t from 'tap'
import type { Scope } from '../../support/program.ts'
import { attacks } from './attacks.ts'
import { outages } from './outages.ts'
import { startPostgres } from './postgres.ts'
import { readers } from './readers.ts'
import { printed, type Report } from './report.ts'
import { storm } from './storm.ts'

const seed = Date.now() % 1_000_000
const postgres = await startPostgres(t)

const scenarios: Record<string, (scope: Scope) => Promise<Report>> = {
  storm: (scope) => storm(scope, postgres, { seed, kills: 2, writes: 100 }),
  outages: (scope) => outages(scope, postgres, {
    lastsMs: 1500, watchMs: 500, perSecond: 10, statementTimeoutMs: 500
  }),
  attacks: (scope) => attacks(scope, postgres, {
    rows: ['bodies of colons, 100', 'bodies one byte short, 1500'],
    share: 0.05,
    watchMs: 200,
    restMs: 0
  }),
  readers: (scope) => readers(scope, postgres, {
    plants: 20_000, characters: 600, stalledReaders: 4, halfOpenRequests: 50, measureMs: 200
  })
}
for (const [name, run] of Object.entries(scenarios)) {
  t.test(`${name}, seed ${seed}`, async (t) => {
    const report = await run(t)
    t.strictSame(report.breaches, [], printed(report))
  })
}
