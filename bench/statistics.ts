// Summarizes the figures of several rounds.
import { round } from '../test/support/table.ts'

export function median (values: number[]): number {
  const sorted = values.toSorted((a, b) => a - b)
  const middle = (sorted.length - 1) / 2
  return ((sorted[Math.floor(middle)] ?? NaN) + (sorted[Math.ceil(middle)] ?? NaN)) / 2
}

/** Returns the text `median [lowest–highest]`. */
export const spread = (values: number[]) =>
  `${round(median(values))} [${round(Math.min(...values))}–${round(Math.max(...values))}]`
