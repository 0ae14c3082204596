// Runs an import or export: opens a connection, handles signals, and reports to standard error.
import { setFlagsFromString } from 'node:v8'
import type { Client } from 'pg'
import type { Config } from '../../config.ts'
import { openClient } from '../../database/connector.ts'
import { withTables } from '../database.ts'
import { formatError } from '../format-error.ts'

export interface Transfer {
  client: Client
  /** Aborts on Ctrl-C, which also ends the connection. */
  signal: AbortSignal
  /** The lines that are read or written: a CSV record may have several. */
  lines: number
  /** How much of the file is read, from 0 to 1; 0 when its size is unknown. */
  share: () => number
  /** The last line of the report; empty when there is nothing to report. */
  summary: () => string
}

/** The time limit of a statement: an insert may wait for a request that creates the same plant. */
const statementTimeoutMs = 60_000
const signals = ['SIGINT', 'SIGTERM']
/** What a shell reports for a program that SIGINT ended. */
const interruptedCode = 130

// A transfer keeps little of what it allocates. By default V8 uses twice the memory and little less time.
for (const flag of ['--semi-space-growth-factor=1', '--heap-growing-percent=50']) setFlagsFromString(flag)

export async function runTransfer (
  config: Config, run: (transfer: Transfer) => Promise<void>
): Promise<void> {
  const interruption = new AbortController()
  const { signal } = interruption
  const interrupt = () => interruption.abort()
  for (const name of signals) process.once(name, interrupt)
  await withTables(config, async (url) => {
    const client = await openClient(url, { statement_timeout: statementTimeoutMs })
    signal.addEventListener('abort', () => client.end())
    const transfer: Transfer = { client, signal, lines: 0, share: () => 0, summary: () => '' }
    const hideProgress = showProgress(transfer)
    const error = await run(transfer).catch((error) => error)
    hideProgress()
    await client.end()
    for (const name of signals) process.off(name, interrupt)
    // The reader of the output wants no more: export … | head
    if (error?.code === 'EPIPE') return
    if (error !== undefined) {
      process.exitCode = signal.aborted ? interruptedCode : 1
      console.error(signal.aborted ? 'interrupted' : formatError(error))
    }
    const summary = transfer.summary()
    if (summary !== '') console.error(summary)
  })
}

/** Keeps one line on a terminal up to date until the returned function removes it. */
function showProgress (transfer: Transfer): () => void {
  const { stderr } = process
  if (!stderr.isTTY) return () => {}
  const startedAt = performance.now()
  const timer = setInterval(() => {
    const seconds = (performance.now() - startedAt) / 1000
    const share = transfer.share()
    const left = share > 0 ? `, ${Math.ceil(seconds / share - seconds)} s left` : ''
    stderr.write(`\r\u001B[K${transfer.lines} lines, ${Math.round(transfer.lines / seconds)} a second${left}`)
  }, 200)
  return () => {
    clearInterval(timer)
    stderr.write('\r\u001B[K')
  }
}
