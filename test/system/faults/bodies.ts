import { costlyBodies, plainBody } from '../../support/costly-bodies.ts'
import { processorMs } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { round } from '../../support/table.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

/** What a body may cost the service above a plain name of its length. */
const mostMs = 10

/** Bodies as large as they may be, made to cost the service all they can, beside a plain one. */
export async function bodies (scope: Scope, postgres: Postgres, { rounds }: { rounds: number }): Promise<Report> {
  const [token] = await createUsers(postgres.url, ['hostile'])
  const service = await serve(scope, { DATABASE_URL: postgres.url })
  const headers = { authorization: `Bearer ${token}`, 'content-type': 'application/json' }
  const all = Object.entries({ 'a plain name': [plainBody], ...costlyBodies })
  const costs = new Map<string, number[]>(all.map(([title]) => [title, []]))
  for (let index = 0; index <= rounds; index++) {
    for (const [title, [body = '']] of all) {
      const before = processorMs(service.child.pid as number)
      const answers = await Promise.all(Array.from({ length: 4 }, async () =>
        (await fetch(`${service.address}/plants`, { method: 'POST', headers, body })).text()))
      // The first round compiles and stores, the others find what is stored.
      if (index > 0) costs.get(title)?.push((processorMs(service.child.pid as number) - before) / answers.length)
    }
  }
  const middle = (title: string) => quantile(costs.get(title) as number[], 0.5)
  const plain = middle('a plain name')
  const dearest = all.map(([title]) => ({ title, ms: middle(title) })).toSorted((a, b) => b.ms - a.ms)
  return {
    title: 'Bodies of 1 MiB',
    head: ['', 'processor time, ms', 'above a plain name'],
    rows: [['a plain name', round(plain), ''], ...dearest.slice(0, 8).map(({ title, ms }) => [title, round(ms), round(ms - plain)])],
    notes: [`The dearest of ${all.length}, ${rounds} rounds of 4 each.`],
    breaches: [],
    misses: dearest.filter(({ ms }) => ms - plain > mostMs).map(({ title, ms }) => `${title}: ${round(ms - plain)} ms more than a plain name`)
  }
}
