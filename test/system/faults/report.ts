import { round, table } from '../../support/table.ts'

export type Cell = string | number

/** Sums of a run. `lost` counts acknowledged writes, or plants with a history that no order explains. */
const noTotals = { kills: 0, requests: 0, acknowledged: 0, lost: 0 }

export interface Report {
  title: string
  head: string[]
  rows: Cell[][]
  notes?: string[]
  /** Without `acknowledged`, the scenario does not compare its writes with the database. */
  totals?: Partial<typeof noTotals>
  /** Promises that the service broke. A slow or busy machine is never the cause. */
  breaches: string[]
  /** Times or sizes above their bound. A slow or busy machine can be the cause. */
  misses: string[]
}

export const printed = ({ title, head, rows, notes = [], breaches, misses }: Report) => [
  `## ${title}`,
  table(head, rows),
  ...notes,
  ...breaches.map((breach) => `**Broken:** ${breach}`),
  ...misses.map((miss) => `**Missed:** ${miss}`)
].join('\n\n') + '\n'

/** Returns the last line of a run. */
export function printedTotals (reports: Report[], seconds: number, seed: number): string {
  const sum = { ...noTotals }
  for (const { totals = {} } of reports) {
    for (const name of Object.keys(sum) as Array<keyof typeof sum>) sum[name] += totals[name] ?? 0
  }
  const [kills, requests, acknowledged, lost] = Object.values(sum).map((count) => count.toLocaleString('en'))
  return `Totals: ${kills} kills, ${requests} requests, ${acknowledged} acknowledged writes checked, ` +
    `${lost} lost, ${round(seconds)} s, seed ${seed}`
}

export const quantile = (values: number[], fraction: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(fraction * values.length) - 1] ?? NaN

export const spread = (values: number[]) =>
  `${round(quantile(values, 0.5))}, at most ${round(Math.max(...values))}`
