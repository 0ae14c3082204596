// The command `import`: checks the lines of a file as a create does, and creates their rows.
import { fstatSync, writeSync } from 'node:fs'
import { open } from 'node:fs/promises'
import { pipeline } from 'node:stream/promises'
import { Type } from '@sinclair/typebox'
import { isPrintable } from '../../access/tokens.ts'
import type { Config } from '../../config.ts'
import { ApiError } from '../../errors.ts'
import { compileValidator, Int64Text, UnicodeText } from '../../http/validation.ts'
import type { Table } from '../../table-gateway/table.ts'
import { lockForImport, maxSilenceMs } from '../user-lock.ts'
import {
  createCsvReader, createNdjsonReader, findFormat, gunzip, invalid, type Line
} from './files.ts'
import { createStore, type Row } from './store.ts'
import { megabytes, runTransfer } from './transfer.ts'

/** The options of the command line, as src/commands/program.ts describes them. */
export interface ImportOptions {
  format?: string
  chunk?: number
  skipErrors?: string
  dryRun: boolean
}

/** A line may be this much longer than BODY_LIMIT, because the line may also name the user. */
const extraBytes = 2048

/** Reads standard input if there is no `file`. If there is no `user`, each line names its user. */
export async function importRows (
  config: Config, table: Table, user: string | undefined, file: string | undefined, options: ImportOptions
): Promise<void> {
  const { format, skipErrors } = options
  const { isCsv, isGzip } = findFormat(file, format)
  await runTransfer(config, 'import', { query_timeout: maxSilenceMs }, async (transfer) => {
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
    await using store = createStore(transfer.client, table, options, lock.check)
    let rejected = 0
    transfer.summary = () => store.summary(rejected)
    if (!options.dryRun) transfer.logged = { user, table: table.name }
    const source = input?.createReadStream() ?? process.stdin
    if (file !== undefined || !process.stdin.isTTY) {
      const total = size > 0 ? ` of ${megabytes(Number(size))}` : ''
      transfer.progress = () => `${megabytes(source.bytesRead)}${total} MB, ${store.rows()} ${table.name}`
    }

    const convert = createConverter(table, isCsv, user, config.BODY_LIMIT)

    function take (line: Line): void {
      try {
        store.add(convert(line), line.number)
      } catch (error) {
        if (!(error instanceof ApiError)) throw error
        rejected++
        const reason = error.message.replace('The body', 'The line')
        if (rejects === undefined) throw new Error(`line ${line.number}: ${reason}`)
        writeSync(rejects.fd, `${JSON.stringify({ line: line.number, reason, text: line.text() })}\n`)
      }
    }

    const maxBytes = config.BODY_LIMIT + extraBytes
    const read = isCsv ? createCsvReader(maxBytes, table, user, take) : createNdjsonReader(maxBytes, take)
    await pipeline(source, ...isGzip ? [gunzip] : [], async (chunks: AsyncIterable<Buffer>) => {
      for await (const chunk of chunks) {
        try {
          await read(chunk)
        } finally {
          // Also stores the lines before an error.
          await store.flush(chunk.length)
        }
      }
      await read()
      await store.end()
    })
    if (rejected > 0) process.exitCode = 3
  })
}

/**
 * The returned function checks a line, and returns its row. Throws an ApiError if the line is invalid.
 * `maxBytes` limits the fields as JSON.
 */
function createConverter (
  { schema: { properties }, fields }: Table, isCsv: boolean, user: string | undefined, maxBytes: number
): (line: Line) => Row {
  const owner = user === undefined && { user: UnicodeText({ description: 'The user' }) }
  const id = isCsv && { id: Int64Text({ description: 'The id' }) }
  const schema = Type.Object({ ...owner, ...properties, ...id })
  const validate = compileValidator({ schema, httpPart: 'body' })
  return (line) => {
    const { value: row, error } = validate(line.parse()) as
      { value: Record<string, string | undefined> & { user: string }, error?: Error }
    if (error !== undefined) throw error
    if (user && 'user' in row) throw invalid('user must be absent, or use --all.')
    if (!user && !isPrintable(row.user)) throw invalid('user must be 1 to 255 printable characters.')
    const cells = [user ?? row.user, row.id, ...fields.map((field) => row[field])]
    // JSON is at most 12 times as long: it has the names of the fields, and six bytes for some characters.
    // Lists and exports rely on the limit.
    if (cells.join().length * 12 > maxBytes && Buffer.byteLength(JSON.stringify(row, fields)) > maxBytes) {
      throw invalid(`The fields must not have more than ${maxBytes} bytes as JSON.`)
    }
    return cells
  }
}
