// The command `import`: checks the lines of a file and creates their rows.
import { closeSync, constants, fstatSync, openSync, statSync, writeSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import type { Config } from '../../config.ts'
import { ApiError } from '../../errors.ts'
import type { Table } from '../../table-gateway/table.ts'
import { UsageError } from '../format.ts'
import { lockForImport, maxSilenceMs } from '../user-lock.ts'
import { createCheck } from './check.ts'
import { findFormat, gunzip, readCsv, readNdjson, type Line } from './files.ts'
import { createStore, type StoreOptions } from './store.ts'
import { megabytes, runTransfer } from './transfer.ts'

/** The options of the command line, as src/commands/program.ts describes them. */
export interface ImportOptions extends StoreOptions {
  format?: string
  empty?: string
  skipErrors?: string
}

/** A line may be this much longer than BODY_LIMIT, because the line may also name the user. */
const extraBytes = 2048

/** Reads standard input if there is no `file`. If there is no `user`, each line names its user. */
export async function importRows (
  config: Config, table: Table, user: string | undefined, file: string | undefined, options: ImportOptions
): Promise<void> {
  const { isCsv, isGzip } = findFormat(file, options.format)
  const emptyTexts = options.empty?.split(',') ?? []
  if (!emptyTexts.every((name) => isCsv && table.textFields.includes(name))) {
    throw new UsageError(`--empty: expected a CSV file, and columns of ${table.textFields.join()}`)
  }
  await runTransfer(config, 'import', { query_timeout: maxSilenceMs }, async (transfer) => {
    const { client, url, signal } = transfer
    if (file !== undefined) signal.addEventListener('abort', () => wakeReader(file))
    await using input = file === undefined ? undefined : await open(file)
    signal.throwIfAborted()
    const { dev, ino, size } = fstatSync(input?.fd ?? 0, { bigint: true })
    const { skipErrors } = options
    await using rejects = skipErrors === undefined ? undefined : await open(skipErrors, 'a', 0o600)
    const output = await rejects?.stat({ bigint: true })
    // Compare the open files: two names may be links to one file, and standard input has no name.
    if (output?.isFile() && output.dev === dev && output.ino === ino) {
      throw new Error('--skip-errors: expected another file than the one to import')
    }
    if (output?.isFile()) await rejects?.truncate()
    await using lock = await lockForImport(url, user, signal)
    const store = createStore(table, client, options, lock.check)
    let rejected = 0
    transfer.summary = () => store.summary(rejected)
    const source = input?.createReadStream() ?? process.stdin
    if (file !== undefined || !process.stdin.isTTY) {
      const total = size > 0 ? ` of ${megabytes(Number(size))}` : ''
      transfer.progress = () => `${megabytes(source.bytesRead)}${total} MB, ${store.rows()} ${table.name}`
    }

    const check = createCheck(table, isCsv, user, config.BODY_LIMIT)
    const maxLineBytes = config.BODY_LIMIT + extraBytes
    async function reject (line: Line, error: unknown): Promise<void> {
      if (!(error instanceof ApiError)) throw error
      rejected++
      const reason = error.message.replace('The body', 'The line')
      if (rejects === undefined) throw new Error(`line ${line.number}: ${reason}`)
      await rejects.appendFile(`${JSON.stringify({ line: line.number, reason, text: line.text() })}\n`)
    }

    await pipeline(source, ...isGzip ? [gunzip] : [], async (chunks: AsyncIterable<Buffer>) => {
      const read = isCsv
        ? readCsv(chunks, maxLineBytes, table, user, emptyTexts)
        : readNdjson(chunks, maxLineBytes)
      for await (const lines of read) {
        for (const line of lines) {
          try {
            store.add(check(line))
          } catch (error) {
            await reject(line, error)
          }
          if (store.isFull()) await store.send(line.number)
        }
      }
      await store.send()
    }, { signal })
    if (rejected > 0) process.exitCode = 3
  })
}

/** Ends an open or a read of a named pipe that waits for a writer. Otherwise the process could not exit. */
function wakeReader (file: string): void {
  if (!statSync(file, { throwIfNoEntry: false })?.isFIFO()) return
  const pipe = openSync(file, constants.O_WRONLY | constants.O_NONBLOCK)
  writeSync(pipe, '\n')
  closeSync(pipe)
}
