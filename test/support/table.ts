/** Returns a Markdown table. All columns except the first are aligned to the right. */
export function table (head: string[], rows: (string | number)[][]) {
  const line = (cells: (string | number)[]) => `| ${cells.join(' | ')} |`
  const rule = head.map((_, column) => column === 0 ? '---' : '--:')
  return [line(head), line(rule), ...rows.map(line)].join('\n')
}

export function round (value: number): string {
  if (Number.isNaN(value)) return '–'
  if (value >= 100) return value.toLocaleString('en', { maximumFractionDigits: 0 })
  return String(Number(value.toPrecision(value < 10 ? 2 : 3)))
}
