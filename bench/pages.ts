// Measures requests for the first page of a user's plants and requests for the last page.
import { round } from '../test/support/table.ts'
import { writeCursor } from '../src/table-gateway/list-routes.ts'
import { median, processor as total, run, type Duration } from './measure.ts'
import { alongside, collector, withClient, type Contender, type Entry, type Postgres } from './running.ts'
import { fill, plants } from './unbounded.ts'

const limit = 20
const lastPage = plants / limit

/** Returns the processor time of a request in µs, of the service and PostgreSQL together. */
async function measure (entry: Entry, page: number, seconds: number) {
  const after = page === 1 ? '' : `&after=${writeCursor(String((page - 1) * limit + 1))}`
  const { output, processor } = await run('wrk', [
    '-t', '2', '-c', '64', '-d', `${seconds}s`, '-H', `Authorization: Bearer ${collector.token}`,
    `${entry.url}/plants?limit=${limit}${after}`
  ], entry)
  const requests = Number(/(\d+) requests in/.exec(output)?.[1])
  if (!(requests > 0) || /Non-2xx|Socket errors/.test(output)) throw new Error(output)
  return total(processor(requests))
}

export async function pages (postgres: Postgres, service: Contender, { seconds, rounds }: Duration) {
  await withClient(postgres.url(service.name), async (client) => {
    await client.query(fill)
    await client.query('vacuum analyze plants')
  })
  const ratios: number[] = []
  await alongside(postgres, [service], async ([entry]) => {
    // The figures of turn 0, the warm-up, are discarded.
    for (let turn = 0; turn <= rounds; turn++) {
      const first = await measure(entry as Entry, 1, seconds)
      const last = await measure(entry as Entry, lastPage, seconds)
      if (turn > 0) ratios.push(last / first)
    }
  })
  return `Page ${lastPage.toLocaleString('en')} of a user's plants takes ${round(median(ratios))} times \
the processor time of page 1.`
}
