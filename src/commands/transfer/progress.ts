// Shows the progress of an import or export on a terminal, in one line that is redrawn.
import { clearLine, cursorTo } from 'node:readline'

export interface Progress {
  /** What the rows are, such as `plants`. */
  kind: string
  bytes: number
  /** Undefined if unknown. */
  totalBytes?: number
  rows: number
  /** Undefined if unknown. May be an estimate. */
  totalRows?: number
}

/** Returns a function that removes the line. Shows nothing if standard error is no terminal. */
export function showProgress (transfer: { progress?: () => Progress }): () => void {
  const { stderr } = process
  if (!stderr.isTTY) return () => {}
  const startedAt = performance.now()

  function draw (text: string): void {
    cursorTo(stderr, 0)
    // The terminal would break a longer line into two, and only the second would be redrawn.
    stderr.write(text.slice(0, (stderr.columns || 80) - 1))
    clearLine(stderr, 1)
  }
  const timer = setInterval(() => {
    const progress = transfer.progress?.()
    if (progress !== undefined) draw(formatProgress(progress, (performance.now() - startedAt) / 1000))
  }, 250)
  return () => {
    clearInterval(timer)
    draw('')
  }
}

export function formatProgress (
  { kind, bytes, totalBytes, rows, totalRows }: Progress, seconds: number
): string {
  const share = totalBytes === undefined ? rows / (totalRows ?? Infinity) : bytes / totalBytes
  const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1)
  const size = totalBytes === undefined ? megabytes(bytes) : `${megabytes(bytes)} of ${megabytes(totalBytes)}`
  const left = share > 0 && share <= 1 ? `, ${formatDuration(seconds / share - seconds)} left` : ''
  return `${size} MB, ${integer.format(rows)} ${kind}, ${integer.format(rows / seconds)} a second${left}`
}

const integer = new Intl.NumberFormat('en', { maximumFractionDigits: 0 })

function formatDuration (seconds: number): string {
  const rounded = Math.ceil(seconds)
  return rounded < 120 ? `${rounded} s` : `${Math.ceil(rounded / 60)} min`
}
