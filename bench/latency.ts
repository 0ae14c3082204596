// Measures latency at the load that a service really has: a part of the full rate, with random pauses.
import pg from 'pg'
import { round } from '../test/support/table.ts'
import {
  loads as allLoads, median, spread, type Duration, type Figures, type Load
} from './measure.ts'
import { alongside, start, type Contender, type Entry, type Postgres } from './running.ts'
import {
  checked, line, movingIds, resultTable, thousandUsers, throughput, type Result
} from './throughput.ts'

const connections = 64
export const loads: Load[] = ['list', 'create', 'mix']
/** V8 needs some 12 s of this load until its code is optimized. */
const warmUpSeconds = 12 / loads.length
/** How long a contender is measured after its start. */
const freshSeconds = 10

/** The load as a part of the full rate of the service. All contenders get the same pauses. */
export const shares = [
  { title: 'a tenth', share: 0.1 },
  { title: 'a third', share: 1 / 3 }
]

type Pauses = Partial<Record<Load, number>>

/** Measures the full rates of the service. Returns the pauses for each of the `shares`. */
export async function measurePauses (postgres: Postgres, service: Contender): Promise<Pauses[]> {
  let full: Result | undefined
  await alongside(postgres, [service], async (entries) => {
    [full] = await throughput(entries, { loads, connections, seconds: 3, rounds: 2, warmUpSeconds })
  })
  return shares.map(({ share }) => Object.fromEntries(loads.map((load) => {
    const rates = full?.rounds.get(load)?.map(({ perSecond }) => perSecond) ?? []
    // A request itself takes about a millisecond.
    return [load, Math.round(connections / (median(rates) * share) * 1000 - 1)]
  })))
}

/** Measures contenders that run for some time. Returns the results for each of the `shares`. */
export async function measureWarm (
  postgres: Postgres, contenders: Contender[], pauses: Pauses[], duration: Duration
): Promise<Result[][]> {
  const results: Result[][] = []
  await alongside(postgres, contenders, async (entries) => {
    for (const [index, pauseMs] of pauses.entries()) {
      const options = { loads, connections, pauseMs, ...duration }
      results.push(await throughput(entries, index === 0 ? { ...options, warmUpSeconds } : options))
    }
  })
  return results
}

/** Starts each contender anew for each load, and measures the first seconds after it is ready. */
export async function measureFresh (
  postgres: Postgres, contenders: Contender[], pauses: Pauses[], rounds: number
): Promise<Result[][]> {
  const results = pauses.map(() => contenders.map(({ title }): Result =>
    ({ title, rounds: new Map(loads.map((load) => [load, []])) })))
  let firstId = movingIds
  for (let turn = 1; turn <= rounds; turn++) {
    for (const load of loads) {
      for (const [share, pauseMs] of pauses.entries()) {
        for (const [index, contender] of contenders.entries()) {
          firstId += 1_000_000_000
          const figures = await measureStart(postgres, contender, load, pauseMs[load] ?? 0, firstId)
          console.log(`${turn}/${rounds} ${load.padEnd(7)} ${contender.title.padEnd(42)} ${line(figures)}`)
          results[share]?.[index]?.rounds.get(load)?.push(figures)
        }
      }
    }
  }
  return results
}

async function measureStart (
  postgres: Postgres, contender: Contender, load: Load, pauseMs: number, firstId: number
): Promise<Figures> {
  const url = postgres.url(contender.name)
  await using stack = new AsyncDisposableStack()
  const database = stack.adopt(new pg.Client(url), (client) => client.end())
  await database.connect()
  await thousandUsers()(database, firstId, 100_000)
  const { pids, url: address } = stack.use(await start(contender, url))
  const { title, tokensFile } = contender
  const entry: Entry = { title, pids, url: address, database, postgres: postgres.pid, tokensFile }
  // The stack ends the contender when this function returns.
  return await checked(entry, load, { connections, seconds: freshSeconds, pauseMs, firstId })
}

const range = (values: number[]) => `${round(Math.min(...values))}–${round(Math.max(...values))}`

/** Shows the lowest and the highest round. Marks a contender that does not reach the rate. */
function latencies (results: Result[]): string {
  const [first] = results
  return resultTable(results, (rounds, load) => {
    const rate = (figures: Figures[]) => median(figures.map(({ perSecond }) => perSecond))
    const isSlow = rate(rounds) < 0.9 * rate(first?.rounds.get(load) ?? [])
    return `${range(rounds.map(({ p50 }) => p50))} / ${range(rounds.map(({ p99 }) => p99))}` +
      (isSlow ? ` (${round(rate(rounds))}/s)` : '')
  })
}

/** Divides the first contender's latency by the latency of each other in the same round. */
function ratios ([first, ...others]: Result[]): string {
  const divide = (load: Load, other: Figures[], figure: 'p50' | 'p99') => spread(other.map((figures, round) =>
    (first?.rounds.get(load)?.[round]?.[figure] ?? NaN) / figures[figure]))
  return resultTable(others, (rounds, load) =>
    `${divide(load, rounds, 'p50')} / ${divide(load, rounds, 'p99')}`)
}

function processorTimes (results: Result[]): string {
  return resultTable(results, (rounds) => {
    const [own, postgres] = (['own', 'postgres'] as const).map((key) => rounds.map((figures) => figures[key]))
    return `${range(own ?? [])} + ${range(postgres ?? [])}`
  })
}

/** Returns Markdown for the results of each of the `shares`. */
export function describeLatency (results: Result[][], first: string): string {
  return results.map((each, index) => {
    const perSecond = allLoads.filter((load) => loads.includes(load)).map((load) =>
      `${load} ${round(median(each[0]?.rounds.get(load)?.map(({ perSecond }) => perSecond) ?? []))}`)
    return `### At ${shares[index]?.title} of the full rate

Requests per second: ${perSecond.join(', ')}. Median / 99th percentile in ms, lowest–highest round:

${latencies(each)}

Latency of ${first}, divided by the latency of the other in the same round, median / 99th percentile:

${ratios(each)}

Processor time of a request in µs, of the contender + PostgreSQL:

${processorTimes(each)}`
  }).join('\n\n')
}
