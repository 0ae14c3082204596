// The command `import`: checks the lines of a file and creates their rows.
import { fstatSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import type { Config } from '../../config.ts'
import { ApiError } from '../../errors.ts'
import type { NewRow, Table } from '../../table-gateway/table.ts'
import { UsageError } from '../format.ts'
import { Batch, type Fields } from './batch.ts'
import { createCheck } from './check.ts'
import { findFormat, readCsv, readNdjson, type Line } from './files.ts'
import { gunzip } from './gunzip.ts'
import { createStore, type StoreOptions } from './store.ts'
import { runTransfer } from './transfer.ts'

/** The options of the command line, as src/main.ts describes them. */
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
  await runTransfer(config, 'import', async (transfer) => {
    await using input = file === undefined ? undefined : await open(file)
    const { dev, ino, size } = fstatSync(input?.fd ?? 0, { bigint: true })
    const { skipErrors } = options
    await using rejects = skipErrors === undefined ? undefined : await open(skipErrors, 'a', 0o600)
    const output = await rejects?.stat({ bigint: true })
    // Compare the open files: two names may be links to one file, and standard input has no name.
    if (output?.isFile() && output.dev === dev && output.ino === ino) {
      throw new Error('--skip-errors: expected another file than the one to import')
    }
    if (output?.isFile()) await rejects?.truncate()
    const source = input?.createReadStream() ?? process.stdin
    const store = createStore(table, transfer, options)
    let rejected = 0
    transfer.summary = () => store.summary(rejected)
    if (!options.dryRun) transfer.logged = { user, table: table.name }
    if (file !== undefined || !process.stdin.isTTY) {
      const totalBytes = Number(size) || undefined
      transfer.progress = () =>
        ({ kind: table.name, bytes: source.bytesRead, totalBytes, rows: store.rows() })
    }

    async function reject ({ number, text }: Line, error: ApiError): Promise<void> {
      rejected++
      const reason = error.message.replace('The body', 'The line')
      if (rejects === undefined) throw new Error(`line ${number}: ${reason}`)
      await rejects.appendFile(`${JSON.stringify({ line: number, reason, text })}\n`)
    }

    const check = createCheck(table, isCsv, user, config.BODY_LIMIT)
    const maxLineBytes = config.BODY_LIMIT + extraBytes
    const read = (chunks: AsyncIterable<Buffer>) =>
      isCsv ? readCsv(chunks, maxLineBytes, table, user, emptyTexts) : readNdjson(chunks, maxLineBytes)
    const storeAll = (chunks: AsyncIterable<Buffer>) => storeLines(table, read(chunks), check, store, reject)
    await pipeline(source, ...isGzip ? [gunzip] : [], storeAll, { signal: transfer.signal })
    if (rejected > 0) process.exitCode = 3
  })
}

/** Stores the rows of the lines that `check` accepts. `reject` throws to end the import. */
async function storeLines (
  table: Table, lines: AsyncIterable<Iterable<Line>>, check: (line: Line) => NewRow<Fields>,
  store: ReturnType<typeof createStore>, reject: (line: Line, error: ApiError) => Promise<void>
): Promise<void> {
  let batch = new Batch(table)
  for await (const some of lines) {
    for (const line of some) {
      try {
        batch.add(check(line))
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        await reject(line, error)
        continue
      }
      if (!store.isFull(batch)) continue
      await store.send(batch, line.number)
      batch = new Batch(table)
    }
    batch.encode()
  }
  await store.end(batch)
}
