// Runs an import or export: opens a connection, handles signals, and reports to standard error.
import { setFlagsFromString } from 'node:v8'
import pg from 'pg'
import type { Config } from '../../config.ts'
import { openClient } from '../../database/servers.ts'
import { logCommand, withOpenDatabase } from '../database.ts'
import { formatError } from '../format.ts'
import { showProgress, type Progress } from './progress.ts'

export interface Transfer {
  client: pg.Client
  /** Aborts on SIGINT or SIGTERM, or if the server no longer responds. This ends the connection, too. */
  signal: AbortSignal
  /** The last line of the report. Empty when there is nothing to report. */
  summary: () => string
  /** The fields of the line in the log of the database. Undefined if the command changes nothing. */
  logged?: object
  /** Undefined if the progress line would mix with the rows on the terminal. */
  progress?: () => Progress
}

// The objects of a transfer are short-lived. V8's default flags would save little time and double the memory.
for (const flag of ['--semi-space-growth-factor=1', '--heap-growing-percent=50']) setFlagsFromString(flag)

/** `name` is the command. PostgreSQL shows it as the name of the application. */
export function runTransfer (config: Config, name: string, run: (transfer: Transfer) => Promise<void>) {
  const applicationName = `plant-store ${name}`
  const options = { applicationName, statementTimeoutMs: 0 }
  return withOpenDatabase(config, options, async (database, url, silence) => {
    const client = await openClient(url, { application_name: applicationName })
    const interruption = new AbortController()
    const signal = AbortSignal.any([interruption.signal, silence])
    const interrupt = () => interruption.abort(new Error('interrupted'))
    process.once('SIGINT', interrupt).once('SIGTERM', interrupt)
    const { stream } = client.connection
    const disconnect = () => { stream.destroy() }
    // A frozen server would never confirm the end of the connection.
    signal.addEventListener('abort', disconnect)
    stream.on('timeout', () => { stream.destroy(new Error('no response from the database')) })
    const transfer: Transfer = { client, signal, summary: () => '' }
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
      process.exitCode = interruption.signal.aborted ? 130 : 1
      console.error(formatError(signal.reason ?? error))
    }
    if (transfer.summary() !== '') console.error(transfer.summary())
    if (transfer.logged && !silence.aborted) {
      await logCommand(database, name, { ...transfer.logged, result: transfer.summary() })
    }
    const timer = setTimeout(disconnect, 1000)
    await client.end()
    clearTimeout(timer)
    // If the reader of a pipe has stopped, the pending write would keep the process alive.
    if (signal.aborted) process.exit()
  })
}
