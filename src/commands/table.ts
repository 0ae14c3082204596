// Formats rows as a text table with aligned columns.

export function formatTable (heads: string[], rows: string[][]): string {
  const widths = heads.map((head, column) =>
    rows.reduce((width, row) => Math.max(width, (row[column] as string).length), head.length))
  return [heads, ...rows]
    .map((row) => row.map((cell, column) => cell.padEnd(widths[column] as number)).join('  ').trimEnd())
    .join('\n')
}
