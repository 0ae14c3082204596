// Runs an import or export: opens a connection, shows the progress, and reports to standard error.
import { setFlagsFromString } from 'node:v8'
import pg from 'pg'
import type { Config } from '../../config.ts'
import { logCommand, withClient } from '../database.ts'
import { formatError } from '../format.ts'

export interface Transfer {
  client: pg.Client
  url: string
  /** The last line of the report. Undefined when there is nothing to report. */
  summary?: () => string
  /** The fields of the line in the log of the database. Undefined if the command changes nothing. */
  logged?: object
  /** Undefined if the progress line would mix with the rows on the terminal. */
  progress?: () => string
  /** Called at the end, also when a signal ends the process. */
  cleanUp?: () => void
}

// The objects of a transfer are short-lived. V8's default flags would save little time and double the memory.
for (const flag of ['--semi-space-growth-factor=1', '--heap-growing-percent=50']) setFlagsFromString(flag)

export const megabytes = (bytes: number) => (bytes / 1e6).toFixed(1)

/** `name` is the command. PostgreSQL shows it as the name of the application. */
export const runTransfer = (
  config: Config, name: string, options: pg.ClientConfig, run: (transfer: Transfer) => Promise<void>
) => withClient(config, name, options, async (client, url) => {
  const transfer: Transfer = { client, url }
  const hideProgress = showProgress(transfer)
  const report = (error?: unknown) => {
    transfer.cleanUp?.()
    hideProgress()
    if (error !== undefined) console.error(formatError(error))
    if (transfer.summary !== undefined) console.error(transfer.summary())
  }
  // A signal ends the process at once: see src/main.ts. So the command also ends if the server is frozen.
  const interrupt = () => report(new Error('interrupted'))
  process.once('exit', interrupt)
  // The error of the next statement would not tell why the connection was lost.
  let lost: Error | undefined
  client.once('error', (error) => { lost = error })
  const error = await run(transfer)
    .catch((error) => error instanceof pg.DatabaseError ? error : lost ?? error)
  process.off('exit', interrupt)
  if (error !== undefined) process.exitCode = 1
  report(error)
  if (transfer.logged === undefined) return
  // After an error, PostgreSQL runs no statement before the end of the transaction.
  if (error !== undefined) await client.query('rollback').catch(() => {})
  await logCommand((text) => client.query(text), name, { ...transfer.logged, result: transfer.summary?.() })
})

/** Redraws a line on a terminal. The returned function removes the line. */
function showProgress (transfer: Transfer): () => void {
  const { stderr } = process
  if (!stderr.isTTY) return () => {}
  // The terminal would break a longer line into two, and only the second would be redrawn.
  const draw = (text = '') => stderr.write(`\r${text.slice(0, (stderr.columns || 80) - 1)}\x1B[K`)
  const timer = setInterval(() => draw(transfer.progress?.()), 250)
  return () => {
    clearInterval(timer)
    draw()
  }
}
