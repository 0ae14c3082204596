import { round } from '../../support/table.ts'
import { memoryMiB } from '../../support/processes.ts'
import { unmeasured, type Scope } from '../../support/program.ts'
import { createClient, describe, type HttpResponse } from './client.ts'
import { createUsers, type Postgres } from './postgres.ts'
import { quantile, summary, type Report } from './report.ts'

const [clients, plantsPerClient, minutes, sampleMs] = [32, 20, 10, 250]
/** The memory in the last minute may be at most this many times the memory in the second minute. */
const maxGrowth = 1.15

/** Sends valid and invalid requests for several minutes. The service must not use more and more memory. */
export async function soak (scope: Scope, postgres: Postgres): Promise<Report> {
  const tokens = await createUsers(postgres.url, Array.from({ length: clients }, (_, id) => `soak-${id}`))
  const service = await unmeasured.serve(scope, { DATABASE_URL: postgres.url })
  const unexpected: HttpResponse[] = []
  const perMinute = Array.from({ length: minutes }, () => ({ requests: 0, samples: [] as number[] }))
  const began = performance.now()
  const now = () => perMinute[Math.floor((performance.now() - began) / 60_000)]

  const sampler = setInterval(() => { now()?.samples.push(memoryMiB(service.child.pid as number)) }, sampleMs)
  await Promise.all(tokens.map(async (token) => {
    const client = createClient(service.address, token)
    const expect = (status: number, response: HttpResponse) => {
      if (response.status !== status) unexpected.push(response)
      const minute = now()
      if (minute) minute.requests++
    }
    for (let id = 0; now() !== undefined; id++) {
      expect(200, await client.create({ id, name: 'Monstera deliciosa', tag: 'tropical' }))
      expect(400, await client.create({ id, name: 'taken' }))
      for (let lists = 0; lists < 10; lists++) expect(200, await client.list())
      if (id >= plantsPerClient) expect(204, await client.delete(id - plantsPerClient))
      expect(404, await client.delete(-1))
      expect(400, await client.list('?limit=1.5'))
    }
    client.close()
  }))
  clearInterval(sampler)

  const medians = perMinute.map(({ samples }) => quantile(samples, 0.5))
  const [warm, last] = [medians[1], medians.at(-1)] as [number, number]
  return {
    title: 'Soak',
    head: ['minute', 'requests', 'median memory, MiB', 'highest, MiB'],
    rows: perMinute.map(({ requests, samples }, index) => [
      index + 1, requests.toLocaleString('en'), round(medians[index] as number), round(Math.max(...samples))
    ]),
    notes: [`Memory of the last minute by that of the second: ${(last / warm).toFixed(2)}.`],
    breaches: summary('unexpected responses', unexpected.map(describe)),
    misses: last > maxGrowth * warm ? [`memory grew from ${round(warm)} to ${round(last)} MiB`] : []
  }
}
