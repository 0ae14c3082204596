// Measures contenders at full load, and at a third of this service's full rate. Each round measures all
// contenders, so that other programs on the machine slow down all contenders alike.
import type pg from 'pg'
import { round } from '../test/support/table.ts'
import { connections, sendLoad, type Figures, type Load, type LoadOptions } from './load.ts'
import type { Running } from './running.ts'
import { median } from './statistics.ts'

export interface Sample extends Figures {
  title: string
  load: Load
  share: 'full' | 'third'
  /** Counted from 1. Round 0 is the warm-up. */
  round: number
}

interface Options {
  loads: Load[]
  /** How long a contender is measured with a load in a round. */
  seconds: number
  rounds: number
}

/** The loads create and delete only plants with larger ids than this. All other plants have smaller ids. */
const movingIds = 1_000_000
const deleteShares = { list: 0, create: 0, delete: 1, mix: 0.05 }

/** Replaces all plants: each of 1,000 readers gets 20 plants, and 1,000 writers get the plants to delete. */
async function refill (database: pg.Client, firstId: number, deletable: number) {
  await database.query(`truncate plants;
    insert into plants (owner, id, name, tag)
      select reader, id, 'Monstera deliciosa ' || id, case when id % 2 = 0 then 'indoor' end
      from generate_series(0, 999) reader, generate_series(1, 20) id;
    insert into plants (owner, id, name, tag)
      select 1000 + id % 1000, id, 'Monstera deliciosa', 'indoor'
      from generate_series(${firstId}, ${firstId + deletable}) id`)
  await database.query('vacuum analyze plants')
  await database.query('checkpoint')
}

async function count (database: pg.Client): Promise<{ kept: number, moved: number }> {
  const { rows: [counted] } = await database.query(`select
    count(*) filter (where id < ${movingIds})::int as kept,
    count(*) filter (where id >= ${movingIds})::int as moved from plants`)
  return counted
}

/** Sends a load, and checks that the number of changed rows matches the number of requests. */
async function sendChecked (contender: Running, load: Load, options: LoadOptions): Promise<Figures> {
  const before = await count(contender.database)
  const figures = await sendLoad(contender, load, options)
  const after = await count(contender.database)
  const changed = after.moved - before.moved
  // Requests in flight at the end of the load also change rows. `figures.requests` does not count them.
  const unaccounted = {
    list: 0, create: changed - figures.requests, delete: -changed - figures.requests, mix: 0
  }[load]
  if (unaccounted < 0 || unaccounted > connections + 1 || after.kept !== before.kept) {
    throw new Error(`${contender.title}: ${load} changed ${changed} rows in ${figures.requests} requests`)
  }
  return figures
}

/**
 * Measures the contenders at full load, then at a third of the first contender's full rate. The samples begin
 * with round 1, in the order of the contenders.
 */
export async function measure (contenders: Running[], options: Options): Promise<Sample[]> {
  const { loads, seconds, rounds } = options
  const samples: Sample[] = []
  const rates = (load: Load, title?: string) => samples
    .filter((sample) => sample.load === load && sample.title === (title ?? sample.title))
    .map(({ perSecond }) => perSecond)

  let firstId = movingIds
  async function takeRound (share: Sample['share'], turn: number, pauses?: Map<Load, number>) {
    for (const load of loads) {
      // Every other round reverses the order, so that no contender is always the first.
      for (const contender of turn % 2 === 1 ? contenders : contenders.toReversed()) {
        // Use new ids. With the same ids, a late request of the previous run could change this run's plants.
        firstId += 1_000_000_000
        // Store enough plants: at the highest rate so far, the load would delete a third of them.
        const fastest = Math.max(20_000, ...rates(load))
        await refill(contender.database, firstId, Math.ceil(fastest * seconds * deleteShares[load] * 3))
        const pauseMs = pauses?.get(load) ?? 0
        const figures = await sendChecked(contender, load, { seconds, pauseMs, firstId })
        samples.push({ title: contender.title, load, share, round: turn, ...figures })
        console.log(`${turn}/${rounds} ${share.padEnd(5)} ${load.padEnd(6)} ${contender.title.padEnd(21)}`,
          line(figures))
      }
    }
  }

  for (let turn = 0; turn <= rounds; turn++) await takeRound('full', turn)
  const pauses = new Map(loads.map((load) => {
    const third = median(rates(load, contenders[0]?.title).slice(1)) / 3
    // A request itself takes about a millisecond.
    return [load, Math.round(connections / third * 1000 - 1)]
  }))
  for (let turn = 1; turn <= rounds; turn++) await takeRound('third', turn, pauses)
  return samples.filter((sample) => sample.round > 0)
}

const line = ({ perSecond, p50, p99, own, postgres }: Figures) =>
  `${perSecond.toFixed(0).padStart(6)}/s  p50 ${round(p50)} ms  p99 ${round(p99)} ms  ` +
    `${round(own)} + ${round(postgres)} µs`
