// Runs an import or export: opens a connection, handles signals, and reports to standard error.
import { setFlagsFromString } from 'node:v8'
import type { Client } from 'pg'
import type { Config } from '../../config.ts'
import { openClient } from '../../database/connector.ts'
import { withDatabase } from '../database.ts'
import { formatError } from '../format.ts'

export interface Transfer {
  client: Client
  /** Aborts on SIGINT or SIGTERM. The abort also ends the database connection. */
  signal: AbortSignal
  /** The last line of the report. Empty when there is nothing to report. */
  summary: () => string
}

// The objects of a transfer are short-lived. V8's default flags would save little time and double the memory.
for (const flag of ['--semi-space-growth-factor=1', '--heap-growing-percent=50']) setFlagsFromString(flag)

export async function runTransfer (config: Config, name: string, run: (transfer: Transfer) => Promise<void>) {
  const interruption = new AbortController()
  const { signal } = interruption
  const interrupt = () => interruption.abort()
  process.once('SIGINT', interrupt).once('SIGTERM', interrupt)
  await withDatabase(config, async (url) => {
    // The timeout is long, because an insert waits for any other transaction that creates the same plant.
    const options = { application_name: `plant-store ${name}`, statement_timeout: 60_000 }
    const client = await openClient(url, options)
    signal.addEventListener('abort', () => { void client.end() })
    const transfer: Transfer = { client, signal, summary: () => '' }
    const error = await run(transfer).catch((error) => error)
    await client.end()
    process.off('SIGINT', interrupt).off('SIGTERM', interrupt)
    if (error !== undefined) {
      // 130 is the usual exit code after SIGINT.
      process.exitCode = signal.aborted ? 130 : 1
      console.error(signal.aborted ? 'interrupted' : formatError(error))
    }
    if (transfer.summary() !== '') console.error(transfer.summary())
  })
}
