// Requests per second and their latency, in rounds of all contenders in turn, so that whatever else the machine
// does falls on all of them alike.
import type pg from 'pg'
import { loads, median, pgbench, wrk, type Figures, type Load } from './measure.ts'
import { round, table } from '../test/support/table.ts'
import type { Bar } from './report.ts'

export interface Entry { title: string, url: string, database: pg.Client, pids: number[], bare?: boolean }
export interface Result { title: string, figures: Map<Load, Figures> }
type Refill = (database: pg.Client, firstId: number, deletable: number) => Promise<void>

/** Ids from here on come and go. */
const movingIds = 1_000_000
const titles = { list: 'list 20', create: 'create', delete: 'delete', mix: '80/15/5 mix' }

async function settle (database: pg.Client) {
  await database.query('vacuum analyze plants')
  await database.query('checkpoint')
}

/** The same for everybody before every run: 1,000 readers with 20 plants each, and writers' plants to delete. */
const thousandUsers: Refill = async (database, firstId, deletable) => {
  await database.query(`truncate plants;
    insert into plants (owner, id, name, tag)
      select reader, id, 'Monstera deliciosa ' || id, case when id % 2 = 0 then 'indoor' end
      from generate_series(0, 999) reader, generate_series(1, 20) id;
    insert into plants (owner, id, name, tag)
      select 1000 + id % 1000, id, 'Monstera deliciosa', 'indoor' from generate_series(${firstId}, ${firstId + deletable}) id`)
  await settle(database)
}

/** Leaves a big store as it is, but for what the last run created. */
export const keepStore: Refill = async (database) => {
  await database.query(`delete from plants where owner in (select username from tokens) and id >= ${movingIds}`)
  await settle(database)
}

const count = async (database: pg.Client) => (await database.query(
  `select count(*) filter (where id < ${movingIds})::int as kept, count(*) filter (where id >= ${movingIds})::int as moved from plants`)).rows[0] as { kept: number, moved: number }

interface Options { loads: Load[], connections: number, seconds: number, rounds: number, refill?: Refill }

export async function throughput (entries: Entry[], { loads, connections, seconds, rounds, refill = thousandUsers }: Options): Promise<Result[]> {
  const runs = entries.map((entry) => ({ entry, past: { list: [], create: [], delete: [], mix: [] } as Record<Load, Figures[]> }))
  let firstId = movingIds
  // Turn 0 warms everything up and isn't counted.
  for (let turn = 0; turn <= rounds; turn++) {
    for (const load of loads) {
      for (const { entry, past } of runs) {
        // No id twice: what was in flight when a run ended may arrive in the next one.
        firstId += 1_000_000_000
        const share = { list: 0, create: 0, delete: 1, mix: 0.05 }[load]
        // Enough to delete, even when this run is three times as fast as those before.
        const fastest = Math.max(10_000, ...past[load].map(({ perSecond }) => perSecond))
        await refill(entry.database, firstId, Math.ceil(fastest * seconds * share * 3))
        const before = await count(entry.database)
        const figures = await (entry.bare ? pgbench : wrk)(entry.url, load,
          { connections, seconds: turn === 0 ? Math.min(2, seconds) : seconds, pids: entry.pids, firstId })
        const after = await count(entry.database)
        const changed = after.moved - before.moved
        // Those in flight at the end were carried out too, but not counted by the generator.
        const unaccounted = { list: 0, create: changed - figures.requests, delete: -changed - figures.requests, mix: 0 }[load]
        if (unaccounted < 0 || unaccounted > connections + 1 || after.kept !== before.kept) throw new Error(`${entry.title}: ${load} changed ${changed} rows in ${figures.requests} requests`)
        console.log(`${turn}/${rounds} ${load.padEnd(7)} ${entry.title.padEnd(32)} ${figures.perSecond.toFixed(0).padStart(6)}/s` +
          `  p50 ${round(figures.p50)} ms  p99 ${round(figures.p99)} ms  ${round(figures.processor)} µs`)
        past[load].push(figures)
      }
    }
  }
  const middle = (all: Figures[]) => Object.fromEntries((['requests', 'perSecond', 'p50', 'p99', 'processor'] as const)
    .map((figure) => [figure, median(all.slice(1).map((one) => one[figure]))])) as unknown as Figures
  return runs.map(({ entry, past }) => ({ title: entry.title, figures: new Map(loads.map((load) => [load, middle(past[load])])) }))
}

/** A line for each contender, a column for each load. */
export function resultTable (results: Result[], cell: (figures: Figures, load: Load) => string) {
  const measured = loads.filter((load) => results[0]?.figures.has(load))
  return table(['', ...measured.map((load) => titles[load])],
    results.map(({ title, figures }) => [title, ...[...figures].map(([load, one]) => cell(one, load))]))
}

/** Everything relative to `yardstick`, as a table and as bars. */
export function compare (results: Result[], yardstick: string) {
  const base = results.find(({ title }) => title === yardstick)?.figures
  const relative = ({ perSecond }: Figures, load: Load) => perSecond / (base?.get(load)?.perSecond ?? NaN)
  const bars = new Map<string, Bar[]>()
  for (const { title, figures } of results) {
    for (const [load, one] of figures) {
      const value = relative(one, load)
      const group = titles[load]
      bars.set(group, [...bars.get(group) ?? [], { title, value, label: `${value.toFixed(1)} (${round(one.perSecond)}/s)` }])
    }
  }
  return { bars, relative: resultTable(results, (one, load) => `${relative(one, load).toFixed(1)} (${round(one.processor)})`) }
}
