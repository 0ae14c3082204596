// Detects whether a file is NDJSON or CSV, and reads the lines of the file.
import { isUtf8 } from 'node:buffer'
import { statSync } from 'node:fs'
import type { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { CsvError, parse } from 'csv-parse'
import { ApiError, errors } from '../../errors.ts'
import { parseJson } from '../../http/json.ts'
import type { Table } from '../../table-gateway/table.ts'
import { UsageError } from '../format.ts'

export interface Line {
  /** Counts from 1. A CSV record of several lines has the number of its last line. */
  number: number
  text: () => string
  /** Throws an ApiError when the line is malformed. */
  parse: () => unknown
}

/** Undefined if the cell is empty and has no quotes. */
type Cell = string | undefined

export const invalid = (message: string) => new ApiError(errors.FIELD_INVALID, { message })

const advice = 'Convert the file: see "Files of other programs" in docs/data.md.'

/**
 * Without `format` the file's extension decides. Standard input and output are NDJSON by default. Throws if
 * `file` is no regular file: a signal could not end the process while it waits for the writer of a pipe.
 */
export function findFormat (
  file: string | undefined, format = /\.((?:ndjson|csv)(?:\.gz)?)$/.exec(file ?? '.ndjson')?.[1]
) {
  if (file !== undefined && statSync(file, { throwIfNoEntry: false })?.isFile() === false) {
    throw new UsageError(`${file}: expected a regular file. Use a pipe to standard input or output instead.`)
  }
  if (format !== undefined) return { isCsv: format.startsWith('csv'), isGzip: format.endsWith('.gz') }
  throw new UsageError(
    `${file}: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz`)
}

/** Throws if data is left: Node's Gunzip ends at a zero after a member, and ignores the rest. */
export async function * gunzip (source: Readable & { bytesRead: number }): AsyncGenerator<Buffer> {
  const unzip = createGunzip()
  yield * source.on('error', (error) => unzip.destroy(error)).pipe(unzip)
  if (source.readableEnded && source.bytesRead === unzip.bytesWritten) return
  throw new Error(`The gzip file has other data after byte ${unzip.bytesWritten}. ` +
    'Decompress the file first: gzip --decompress --stdout')
}

/** Reads a chunk of the file. Without a chunk, reads the end of the file. */
type Reader = (chunk?: Buffer) => void | Promise<void>

// The readers call `take` for each line, because to yield each line from an async generator is slow. They
// split latin1, where each byte is a character: so only lines that are not UTF-8 are rejected.

/** Skips blank lines. To save memory, shortens lines over `maxBytes`. */
export function createNdjsonReader (maxBytes: number, take: (line: Line) => void): Reader {
  let [rest, number] = ['', 0]
  const parse = (text: string) => {
    if (text.length > maxBytes) throw invalid(`The line must not have more than ${maxBytes} bytes.`)
    return parseJson(toUtf8(text))
  }
  return (chunk) => {
    const texts = (rest + (chunk?.toString('latin1') ?? '\n')).split('\n')
    rest = (texts.pop() as string).slice(0, maxBytes + 1)
    for (const text of texts) {
      number++
      if (text !== '' && text !== '\r') take({ number, text: () => decode(text), parse: () => parse(text) })
    }
  }
}

/** Throws at a malformed quote, because after such a quote the start of the next record is unknown. */
export function createCsvReader (
  maxBytes: number, table: Table, user: string | undefined, take: (line: Line) => void
): Reader {
  let [columns, number, isFirst]: [string[], number, boolean] = [[], 0, true]
  const parser = parse({
    record_delimiter: ['\r\n', '\n', '\r'],
    encoding: 'latin1',
    relax_column_count: true,
    max_record_size: maxBytes,
    cast: (cell, { quoting }) => cell === '' && !quoting ? undefined : cell,
    // Returns nothing, so that the parser keeps no record.
    on_record (cells: Cell[]) {
      number++
      // The count of csv-parse has each CR LF in a cell twice.
      for (const cell of cells) number += cell?.match(/\r\n?|\n/g)?.length ?? 0
      if (cells.length === 1 && cells[0] === undefined) return
      if (columns.length === 0) columns = checkHeader(number, cells, table, user)
      else take({ number, text: () => decode(toCsv(cells)), parse: () => toObject(columns, cells, table) })
    }
  }).on('error', () => {})

  return async (chunk) => {
    // The option `bom` of csv-parse would turn the encoding to UTF-8.
    const start = isFirst && chunk?.indexOf('\uFEFF') === 0 ? 3 : 0
    isFirst = false
    const error = await new Promise<Error | null | undefined>((resolve) =>
      chunk === undefined ? parser.end(resolve) : parser.write(chunk.subarray(start), resolve))
    if (error instanceof CsvError) {
      throw new Error(`line ${number + 1}: ${error.message}. Expected commas between the cells, cells like ` +
        `"5"" pot", and at most ${maxBytes} bytes. ${advice}`)
    }
    if (error) throw error
  }
}

/** Writes the cells of a line. */
const toCsv = (cells: Cell[]) =>
  cells.map((cell) => cell === undefined ? '' : `"${cell.replaceAll('"', '""')}"`).join()

const decode = (latin1: string) => Buffer.from(latin1, 'latin1').toString()

function toUtf8 (latin1: string): string {
  if (!/[\x80-\xFF]/.test(latin1)) return latin1
  if (isUtf8(Buffer.from(latin1, 'latin1'))) return decode(latin1)
  throw invalid(`The line is not valid UTF-8. ${advice}`)
}

function checkHeader (number: number, cells: Cell[], { fields }: Table, user?: string): string[] {
  const known = [...user === undefined ? ['user'] : [], 'id', ...fields]
  const columns = cells.map((cell = '') => decode(cell))
  if (columns.every((name, index) => known.includes(name) && columns.indexOf(name) === index)) return columns
  // Quotes show spaces at the ends of a name.
  const got = columns.map((name) => JSON.stringify(name)).join().replace(/(?<=^.{100}).+/, '…')
  throw new Error(`line ${number}: expected columns of ${known.join()}, each once, with commas between ` +
    `them and in UTF-8, got ${got}. ${advice}`)
}

/** Matches a number or a boolean in JSON. */
const scalar = /^(?:true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[Ee][+-]?\d+)?)$/

function toObject (columns: string[], cells: Cell[], { scalarFields }: Table): unknown {
  if (cells.length !== columns.length) throw invalid(`The line must have ${columns.length} cells.`)
  const row: Record<string, unknown> = {}
  for (const [index, name] of columns.entries()) {
    const cell = cells[index]
    const isScalar = cell && scalarFields.includes(name) && scalar.test(cell)
    row[name] = isScalar ? JSON.parse(cell) : cell && toUtf8(cell)
  }
  return row
}
