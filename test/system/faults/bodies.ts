import { costlyBodies, plainBody } from '../../support/costly-bodies.ts'
import { processorMs } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { round } from '../../support/table.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Report } from './report.ts'

const [rounds, shown] = [15, 8]

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
  const plain = quantile(all[0]?.costs ?? [], 0.5)
  const costliest = all.slice(1).map(({ title, costs }) => ({ title, ms: quantile(costs, 0.5) }))
    .map(({ title, ms }) => ({ title, ms, beyond: ms - plain })).sort((a, b) => b.ms - a.ms)
  const rows = costliest.slice(0, shown).map(({ title, ms, beyond }) => [title, round(ms), round(beyond)])
  return {
    title: `Bodies of ${Math.round(plainBody.length / 1024)} KiB`,
    head: ['', 'processor time, ms', 'above a plain name'],
    rows: [['a plain name', round(plain), ''], ...rows],
    notes: [`The ${shown} most expensive of ${all.length}, ${rounds} rounds of 4 each.`],
    breaches: [],
    misses: costliest.filter(({ beyond }) => beyond > maxMs)
      .map(({ title, beyond }) => `${title}: ${round(beyond)} ms more than a plain name`)
  }
}
