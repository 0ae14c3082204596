import { costlyBodies, plainBody } from '../../support/costly-bodies.ts'
import { processorMs } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { round } from '../../support/table.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Report } from './report.ts'

const rounds = 15
/** How much more processor time an expensive body may use than `plainBody`. */
const maxMs = 10

export async function bodies (scope: Scope, postgres: Postgres): Promise<Report> {
  const [token] = await createUsers(postgres.url, ['hostile'])
  const service = await unmeasured.serve(scope, { DATABASE_URL: postgres.url })
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const all = Object.entries({ 'a plain name': [plainBody], ...costlyBodies })
    .map(([title, [body = '']]) => ({ title, body, costs: [] as number[] }))
  for (let index = 0; index <= rounds; index++) {
    for (const { body, costs } of all) {
      const before = processorMs(service.child.pid as number)
      const responses = await Promise.all(Array.from({ length: 4 }, async () =>
        (await fetch(`${service.address}/plants`, { method: 'POST', headers, body })).text()))
      const used = processorMs(service.child.pid as number) - before
      // Skip the first round, in which the service also compiles code and creates the plants.
      if (index > 0) costs.push(used / responses.length)
    }
  }
  const medians = all.map(({ title, costs }) => ({ title, ms: quantile(costs, 0.5) }))
  const plain = medians[0]?.ms ?? NaN
  return {
    title: `Bodies of ${Math.round(plainBody.length / 1024)} KiB`,
    head: ['', 'processor time, ms', 'above a plain name'],
    rows: medians.map(({ title, ms }) => [title, round(ms), round(ms - plain)]),
    notes: [`Medians of ${rounds} rounds of 4 requests each.`],
    breaches: [],
    misses: medians.filter(({ ms }) => ms - plain > maxMs)
      .map(({ title, ms }) => `${title}: ${round(ms - plain)} ms more than a plain name`)
  }
}
