// Measures requests per second, latency and processor time. Each round measures all contenders, so that other
// programs on the machine slow down all contenders alike.
import type pg from 'pg'
import { round, table } from '../test/support/table.ts'
import {
  loads, median, pgbench, processor, spread, wrk, type Duration, type Figures, type Load
} from './measure.ts'
import type { Bar } from './report.ts'
import type { Entry } from './running.ts'

/** `rounds` maps a load to the figures of each round. */
export interface Result { title: string, rounds: Map<Load, Figures[]> }
type Refill = (database: pg.Client, firstId: number, deletable: number) => Promise<void>

/** The loads create and delete only plants with larger ids than this. All other plants have smaller ids. */
export const movingIds = 1_000_000
const titles = { list: 'list 20', create: 'create', delete: 'delete', mix: '80/15/5 mix' }

async function settle (database: pg.Client) {
  await database.query('vacuum analyze plants')
  await database.query('checkpoint')
}

/** Replaces all plants: each of 1,000 readers gets 20 plants, and 1,000 writers get the plants to delete. */
export const thousandUsers = (prefix = ''): Refill => async (database, firstId, deletable) => {
  await database.query(`truncate plants;
    insert into plants (owner, id, name, tag)
      select '${prefix}' || reader, id, 'Monstera deliciosa ' || id, case when id % 2 = 0 then 'indoor' end
      from generate_series(0, 999) reader, generate_series(1, 20) id;
    insert into plants (owner, id, name, tag)
      select '${prefix}' || (1000 + id % 1000), id, 'Monstera deliciosa', 'indoor'
      from generate_series(${firstId}, ${firstId + deletable}) id`)
  await settle(database)
}

/** Keeps a large store between runs: deletes only the plants that earlier runs created. */
export const keepStore: Refill = async (database) => {
  await database.query(`delete from plants
    where owner in (select username from tokens) and id >= ${movingIds}`)
  await settle(database)
}

async function count (database: pg.Client): Promise<{ kept: number, moved: number }> {
  const { rows: [counted] } = await database.query(`select
    count(*) filter (where id < ${movingIds})::int as kept,
    count(*) filter (where id >= ${movingIds})::int as moved from plants`)
  return counted
}

interface Options extends Duration {
  loads: Load[]
  connections: number
  /** By default, connections do not pause. */
  pauseMs?: Partial<Record<Load, number>>
  warmUpSeconds?: number
  refill?: Refill
}

export async function throughput (entries: Entry[], options: Options): Promise<Result[]> {
  const { rounds, warmUpSeconds = Math.min(2, options.seconds), refill = thousandUsers() } = options
  const runs = entries.map((entry) =>
    ({ entry, past: { list: [], create: [], delete: [], mix: [] } as Record<Load, Figures[]> }))
  let firstId = movingIds
  // The figures of turn 0, the warm-up, are discarded.
  for (let turn = 0; turn <= rounds; turn++) {
    const seconds = turn === 0 ? warmUpSeconds : options.seconds
    for (const load of options.loads) {
      for (const { entry, past } of runs) {
        // Use new ids. With the same ids, a late request of the previous run could change this run's plants.
        firstId += 1_000_000_000
        const share = { list: 0, create: 0, delete: 1, mix: 0.05 }[load]
        // Store enough plants: at the highest rate so far, the load would delete a third of them.
        const fastest = Math.max(20_000, ...past[load].map(({ perSecond }) => perSecond))
        await refill(entry.database, firstId, Math.ceil(fastest * seconds * share * 3))
        const pauseMs = options.pauseMs?.[load]
        const figures = await checked(entry, load, { ...options, seconds, pauseMs, firstId })
        console.log(`${turn}/${rounds} ${load.padEnd(7)} ${entry.title.padEnd(42)} ${line(figures)}`)
        past[load].push(figures)
      }
    }
  }
  return runs.map(({ entry: { title }, past }) =>
    ({ title, rounds: new Map(options.loads.map((load) => [load, past[load].slice(1)])) }))
}

export const line = ({ perSecond, p50, p99, own, postgres }: Figures) =>
  `${perSecond.toFixed(0).padStart(6)}/s  p50 ${round(p50)} ms  p99 ${round(p99)} ms  ` +
    `${round(own)} + ${round(postgres)} µs`

/** Measures a run and checks that the number of changed rows matches the number of requests. */
export async function checked (
  entry: Entry, load: Load,
  options: { connections: number, seconds: number, pauseMs?: number | undefined, firstId: number }
): Promise<Figures> {
  const before = await count(entry.database)
  const figures = await (entry.pids.length === 0 ? pgbench : wrk)(entry, load, options)
  const after = await count(entry.database)
  const changed = after.moved - before.moved
  // Requests in flight at the end of the load also change rows. `figures.requests` does not count them.
  const unaccounted = {
    list: 0, create: changed - figures.requests, delete: -changed - figures.requests, mix: 0
  }[load]
  if (unaccounted < 0 || unaccounted > options.connections + 1 || after.kept !== before.kept) {
    throw new Error(`${entry.title}: ${load} changed ${changed} rows in ${figures.requests} requests`)
  }
  return figures
}

export function resultTable (results: Result[], cell: (rounds: Figures[], load: Load) => string) {
  const measured = loads.filter((load) => results[0]?.rounds.has(load))
  const row = ({ title, rounds }: Result) =>
    [title, ...measured.map((load) => cell(rounds.get(load) ?? [], load))]
  return table(['', ...measured.map((load) => titles[load])], results.map(row))
}

export const latencyTable = (results: Result[]) => resultTable(results, (rounds) =>
  `${round(median(rounds.map(({ p50 }) => p50)))}/${round(median(rounds.map(({ p99 }) => p99)))}`)

/**
 * Divides each round's figure by the yardstick's figure in the same round. The cells have the median of the
 * figures and the spread of the ratios.
 */
function compareWith (results: Result[], yardstick: string, figure: (figures: Figures) => number) {
  const base = results.find(({ title }) => title === yardstick)?.rounds
  const relative = (rounds: Figures[], load: Load) =>
    rounds.map((figures, round) => figure(figures) / figure(base?.get(load)?.[round] as Figures))
  const cell = (rounds: Figures[], load: Load) =>
    `${round(median(rounds.map(figure)))}: ${spread(relative(rounds, load))}`
  return { relative, figures: resultTable(results, cell) }
}

/** Shows processor times in µs of contender and PostgreSQL together, and how many times the first's. */
export const processorTable = (results: Result[]) =>
  compareWith(results, results[0]?.title as string, processor).figures

/** Shows rates, and how many times the yardstick's rate. Also returns bars to plot. */
export function compare (results: Result[], yardstick: string) {
  const { relative, figures: rates } = compareWith(results, yardstick, ({ perSecond }) => perSecond)
  const bars = new Map<string, Bar[]>()
  for (const { title, rounds } of results) {
    for (const [load, figures] of rounds) {
      const value = median(relative(figures, load))
      const label = `${value.toFixed(1)} (${round(median(figures.map(({ perSecond }) => perSecond)))}/s)`
      bars.set(titles[load], [...bars.get(titles[load]) ?? [], { title, value, label }])
    }
  }
  return { bars, rates }
}
