import { round, table } from '../../support/table.ts'

export type Cell = string | number

/** What a scenario did and found. */
export interface Report {
  title: string
  head: string[]
  rows: Cell[][]
  /** A sentence each. */
  notes?: string[]
  /** Promises broken, whatever the machine. */
  breaches: string[]
  /** Times or sizes beyond what is promised: a busy machine may be to blame. */
  misses: string[]
}

export const printed = ({ title, head, rows, notes = [], breaches, misses }: Report) => [
  `## ${title}`,
  table(head, rows),
  ...notes,
  ...breaches.map((breach) => `**Broken:** ${breach}`),
  ...misses.map((miss) => `**Missed:** ${miss}`)
].join('\n\n') + '\n'

export const quantile = (values: number[], fraction: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(fraction * values.length) - 1] ?? NaN

/** The middle and the highest of some values. */
export const spread = (values: number[]) => `${round(quantile(values, 0.5))}, at most ${round(Math.max(...values))}`
