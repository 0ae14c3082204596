import { round } from '../../support/table.ts'
import { memoryMiB } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createCaller, type Answer } from './caller.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, type Report } from './report.ts'

const { serve } = unmeasured

const callers = 32
const plantsPerCaller = 20
const sampleMs = 250
/** Collections come at different times, so that even a flat line has waves. */
const mostGrowth = 1.15

/** Callers who create, list and delete, refused now and then, for minutes on end. */
export async function soak (scope: Scope, postgres: Postgres, { minutes }: { minutes: number }): Promise<Report> {
  const tokens = await createUsers(postgres.url, Array.from({ length: callers }, (_, index) => `soak-${index}`))
  const service = await serve(scope, { DATABASE_URL: postgres.url })
  const odd: Answer[] = []
  const perMinute = Array.from({ length: minutes }, () => ({ requests: 0, samples: [] as number[] }))
  const began = performance.now()
  const now = () => perMinute[Math.floor((performance.now() - began) / 60_000)]

  const sampler = setInterval(() => { now()?.samples.push(memoryMiB(service.child.pid as number)) }, sampleMs)
  await Promise.all(tokens.map(async (token) => {
    const caller = createCaller(service.address, token)
    const expect = (status: number, answer: Answer) => {
      if (answer.status !== status) odd.push(answer)
      const minute = now()
      if (minute) minute.requests++
    }
    for (let id = 0; now() !== undefined; id++) {
      expect(200, await caller.create({ id, name: 'Monstera deliciosa', tag: 'tropical' }))
      expect(400, await caller.create({ id, name: 'taken' }))
      for (let lists = 0; lists < 10; lists++) expect(200, await caller.list())
      if (id >= plantsPerCaller) expect(204, await caller.delete(id - plantsPerCaller))
      expect(404, await caller.delete(-1))
      expect(400, await caller.list('?limit=1.5'))
    }
    caller.close()
  }))
  clearInterval(sampler)

  const medians = perMinute.map(({ samples }) => quantile(samples, 0.5))
  const [, warm = NaN] = medians
  const last = medians.at(-1) as number
  return {
    title: 'Soak',
    head: ['minute', 'requests', 'median memory, MiB', 'most, MiB'],
    rows: perMinute.map(({ requests, samples }, index) => [index + 1, requests.toLocaleString('en'), round(medians[index] as number), round(Math.max(...samples))]),
    notes: [`Of the last minute and the second: ${(last / warm).toFixed(2)}.`],
    breaches: odd.length > 0 ? [`${odd.length} answers other than expected, such as ${odd[0]?.outcome} ${odd[0]?.status} ${odd[0]?.body}`] : [],
    misses: last > mostGrowth * warm ? [`memory grew from ${round(warm)} to ${round(last)} MiB`] : []
  }
}
