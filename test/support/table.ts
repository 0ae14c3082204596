/** A Markdown table. All columns but the first are aligned to the right. */
export function table (head: string[], rows: (string | number)[][]) {
  const line = (cells: (string | number)[]) => `| ${cells.join(' | ')} |`
  return [line(head), line(head.map((_, column) =>
    column === 0 ? '---' : '--:')), ...rows.map(line)].join('\n')
}

/** Rounds to at most three significant digits. NaN becomes a dash. */
export const round = (value: number) => Number.isNaN(value)
  ? '–'
  : value >= 100
    ? value.toLocaleString('en', { maximumFractionDigits: 0 })
    : String(Number(value.toPrecision(value < 10 ? 2 : 3)))
