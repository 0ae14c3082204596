// Runs an import or export: opens a connection, handles signals, and reports to standard error.
import { clearLine, cursorTo } from 'node:readline'
import { setFlagsFromString } from 'node:v8'
import pg from 'pg'
import type { Config } from '../../config.ts'
import { withClient } from '../database.ts'
import { formatError } from '../format.ts'

export interface Transfer {
  client: pg.Client
  url: string
  /** Aborts on SIGINT or SIGTERM. This ends the connection, too. */
  signal: AbortSignal
  /** The last line of the report. Empty when there is nothing to report. */
  summary: () => string
  /** Undefined if the progress line would mix with the rows on the terminal. */
  progress?: () => string
}

// The objects of a transfer are short-lived. V8's default flags would save little time and double the memory.
for (const flag of ['--semi-space-growth-factor=1', '--heap-growing-percent=50']) setFlagsFromString(flag)

/** `name` is the command. PostgreSQL shows it as the name of the application. */
export function runTransfer (
  config: Config, name: string, options: pg.ClientConfig, run: (transfer: Transfer) => Promise<void>
) {
  return withClient(config, name, options, async (client, url) => {
    const { stream } = client.connection
    const interruption = new AbortController()
    const { signal } = interruption
    const interrupt = () => {
      interruption.abort(new Error('interrupted'))
      stream.destroy()
    }
    process.once('SIGINT', interrupt).once('SIGTERM', interrupt)
    const transfer: Transfer = { client, url, signal, summary: () => '' }
    const hideProgress = showProgress(transfer)
    // The error of the next statement would not tell why the connection was lost.
    let lost: Error | undefined
    client.once('error', (error) => { lost = error })
    const error = await run(transfer).catch((error) =>
      error instanceof pg.DatabaseError ? error : lost ?? error)
    hideProgress()
    process.off('SIGINT', interrupt).off('SIGTERM', interrupt)
    if (error !== undefined) {
      // 130 is the usual exit code after SIGINT.
      process.exitCode = signal.aborted ? 130 : 1
      console.error(formatError(signal.reason ?? error))
    }
    if (transfer.summary() !== '') console.error(transfer.summary())
    // If the reader of a pipe has stopped, the pending write would keep the process alive.
    if (signal.aborted) process.exit()
  })
}

/** Redraws a line on a terminal. The returned function removes the line. */
function showProgress (transfer: Transfer): () => void {
  const { stderr } = process
  if (!stderr.isTTY) return () => {}
  const draw = (text = '') => {
    cursorTo(stderr, 0)
    // The terminal would break a longer line into two, and only the second would be redrawn.
    stderr.write(text.slice(0, (stderr.columns || 80) - 1))
    clearLine(stderr, 1)
  }
  const timer = setInterval(() => draw(transfer.progress?.()), 250)
  return () => {
    clearInterval(timer)
    draw()
  }
}

export const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1)
