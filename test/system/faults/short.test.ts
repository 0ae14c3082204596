// Runs three scenarios of `npm run test:faults` in a short form. Ignores `misses` (times and sizes), because
// they depend on the load of the machine.
import t from 'tap'
import type { Scope } from '../../support/program.ts'
import { attacks } from './attacks.ts'
import { outages } from './outages.ts'
import { startPostgres } from './postgres.ts'
import { printed, type Report } from './report.ts'
import { storm } from './storm.ts'

const seed = Date.now() % 1_000_000
const postgres = await startPostgres(t)
const outage = { lastsMs: 1500, watchMs: 500, perSecond: 10, statementTimeoutMs: 500 }
const rows = ['4 bodies of colons,', '9 three long lists', '10 bodies one byte short,']

for (const [name, run] of Object.entries<(scope: Scope) => Promise<Report>>({
  storm: (scope) => storm(scope, postgres, { seed, kills: 2, writes: 100 }),
  outages: (scope) => outages(scope, postgres, outage),
  attacks: () => attacks(postgres, { share: 0.05, watchMs: 200, restMs: 0, idle: 50 }, rows)
})) {
  t.test(`${name}, seed ${seed}`, async (t) => {
    const report = await run(t)
    t.strictSame(report.breaches, [], printed(report))
  })
}
