// The command `import`: checks the lines of a file as a create does, and creates their rows.
import { constants, fstatSync, openSync, statSync, writeSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/tokens.ts'
import type { Config } from '../../config.ts'
import { ApiError } from '../../errors.ts'
import { compileValidator, Int64Text, UnicodeText } from '../../http/validation.ts'
import type { NewRow, Table } from '../../table-gateway/table.ts'
import { UsageError } from '../format.ts'
import { lockForImport, maxSilenceMs } from '../user-lock.ts'
import { findFormat, gunzip, invalid, readCsv, readNdjson, type Line } from './files.ts'
import { createStore, type Fields } from './store.ts'
import { megabytes, runTransfer } from './transfer.ts'

/** The options of the command line, as src/commands/program.ts describes them. */
export interface ImportOptions {
  format?: string
  chunk?: number
  empty?: string
  skipErrors?: string
  dryRun: boolean
}

/** A line may be this much longer than BODY_LIMIT, because the line may also name the user. */
const extraBytes = 2048

/** Reads standard input if there is no `file`. If there is no `user`, each line names its user. */
export async function importRows (
  config: Config, table: Table, user: string | undefined, file: string | undefined, options: ImportOptions
): Promise<void> {
  const { format, empty, skipErrors } = options
  const { isCsv, isGzip } = findFormat(file, format)
  const emptyTexts = empty?.split(',') ?? []
  if (!emptyTexts.every((name) => isCsv && table.textFields.includes(name))) {
    throw new UsageError(`--empty: expected a CSV file, and columns of ${table.textFields.join()}`)
  }
  await runTransfer(config, 'import', { query_timeout: maxSilenceMs }, async (transfer) => {
    transfer.onInterrupt = () => wakeReader(file)
    await using input = file === undefined ? undefined : await open(file)
    const { dev, ino, size } = fstatSync(input?.fd ?? 0, { bigint: true })
    await using rejects = skipErrors === undefined ? undefined : await open(skipErrors, 'a', 0o600)
    const output = await rejects?.stat({ bigint: true })
    // Compare the open files: two names may be links to one file, and standard input has no name.
    if (output?.isFile() && output.dev === dev && output.ino === ino) {
      throw new Error('--skip-errors: expected another file than the one to import')
    }
    if (output?.isFile()) await rejects?.truncate()
    await using lock = await lockForImport(transfer.url, user)
    const store = createStore(transfer.client, table, options, lock.check)
    let rejected = 0
    transfer.summary = () => store.summary(rejected)
    if (!options.dryRun) transfer.logged = { user, table: table.name }
    const source = input?.createReadStream() ?? process.stdin
    if (file !== undefined || !process.stdin.isTTY) {
      const total = size > 0 ? ` of ${megabytes(Number(size))}` : ''
      transfer.progress = () => `${megabytes(source.bytesRead)}${total} MB, ${store.rows()} ${table.name}`
    }

    async function reject ({ number, text }: Line, error: unknown): Promise<void> {
      if (!(error instanceof ApiError)) throw error
      rejected++
      const reason = error.message.replace('The body', 'The line')
      if (rejects === undefined) throw new Error(`line ${number}: ${reason}`)
      await rejects.appendFile(`${JSON.stringify({ line: number, reason, text: text() })}\n`)
    }

    const check = createCheck(table, isCsv, user, config.BODY_LIMIT)
    const maxBytes = config.BODY_LIMIT + extraBytes
    await pipeline(source, ...isGzip ? [gunzip] : [], async (chunks: AsyncIterable<Buffer>) => {
      const read = isCsv ? readCsv(chunks, maxBytes, table, user, emptyTexts) : readNdjson(chunks, maxBytes)
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
    })
    if (rejected > 0) process.exitCode = 3
  })
}

/** The returned function throws an ApiError for an invalid line. `maxBytes` limits the fields as JSON. */
function createCheck (
  { schema: { properties }, fields }: Table, isCsv: boolean, user: string | undefined, maxBytes: number
): (line: Line) => NewRow<Fields> {
  const owner = user === undefined && { user: UnicodeText({ description: 'The user' }) }
  const id = isCsv && { id: Int64Text({ description: 'The id' }) }
  const schema = Type.Object({ ...owner, ...properties, ...id })
  const validate = compileValidator({ schema, httpPart: 'body' })
  return (line) => {
    const { value: row, error } = validate(line.parse()) as
      { value: Fields & { user: string }, error?: Error }
    if (error !== undefined) throw error
    if (user && 'user' in row) throw invalid('user must be absent, or use --all.')
    if (!user && !isPrintable(row.user)) throw invalid('user must be 1 to 255 printable characters.')
    // In JSON, a character takes at most six bytes. Lists and exports rely on the limit.
    if (Object.values(row).join().length * 6 > maxBytes / 2 &&
      Buffer.byteLength(JSON.stringify(row, fields)) > maxBytes) {
      throw invalid(`The fields must not have more than ${maxBytes} bytes as JSON.`)
    }
    return { user: user ?? row.user, id: String(row.id), row }
  }
}

/** Ends an `open` or `read` of a named pipe that waits for a writer. Otherwise the process could not exit. */
function wakeReader (file?: string): void {
  if (file === undefined || !statSync(file).isFIFO()) return
  writeSync(openSync(file, constants.O_RDWR | constants.O_NONBLOCK), '\n')
}
