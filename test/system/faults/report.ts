import { round, table } from '../../support/table.ts'

export interface Report {
  title: string
  head: string[]
  rows: Array<Array<string | number>>
  notes?: string[]
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

/** Returns one line about `all` with the first of them as the example, or no line if `all` is empty. */
export const summary = (what: string, all: string[]) =>
  all.length === 0 ? [] : [`${all.length} ${what}, such as ${all[0]}`]

export const quantile = (values: number[], fraction: number): number =>
  values.toSorted((a, b) => a - b)[Math.ceil(fraction * values.length) - 1] ?? NaN

export const latency = (responses: Array<{ ms: number }>, fraction: number) =>
  quantile(responses.map(({ ms }) => ms), fraction)

export const spread = (values: number[]) =>
  `${round(quantile(values, 0.5))}, at most ${round(Math.max(...values))}`
