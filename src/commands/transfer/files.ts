// Detects whether a file is NDJSON or CSV, and reads the lines of the file.
import { isUtf8 } from 'node:buffer'
import { pipeline } from 'node:stream'
import { CsvError, parse } from 'csv-parse'
import { ApiError, errors } from '../../errors.ts'
import { parseJsonBody } from '../../http/json.ts'
import { fields } from '../../plants/columns.ts'

export interface Line {
  /** Counts from 1. A CSV record of several lines has the number of its last line. */
  number: number
  text: () => string
  /** Throws an ApiError when the line is malformed. */
  parse: () => unknown
}

export const invalid = (message: string) => new ApiError(errors.FIELD_INVALID, { message })

/** Without `format` the file's extension decides. Standard input and output are NDJSON by default. */
export function findFormat (file = '.ndjson', format = /\.((?:ndjson|csv)(?:\.gz)?)$/.exec(file)?.[1]) {
  if (format !== undefined) return { isCsv: format.startsWith('csv'), isGzip: format.endsWith('.gz') }
  throw new Error(`${file}: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz`)
}

const columnsOf = (user?: string) => [...user === undefined ? ['user'] : [], 'id', ...fields]

/** Skips blank lines. To save memory, truncates lines over `maxBytes`. `parse` of a truncated line throws. */
export async function * readNdjson (chunks: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Line> {
  const parse = (bytes: Buffer) => {
    if (bytes.length <= maxBytes) return parseJsonBody(bytes)
    throw invalid(`The line must not have more than ${maxBytes} bytes.`)
  }
  let number = 0
  for await (const bytes of splitLines(skipMark(chunks), maxBytes)) {
    number++
    const isBlank = bytes.length === 0 || (bytes.length === 1 && bytes[0] === 13)
    if (!isBlank) yield { number, text: () => bytes.toString(), parse: () => parse(bytes) }
  }
}

async function * splitLines (chunks: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer> {
  let rest = Buffer.alloc(0)
  for await (const chunk of chunks) {
    const bytes = Buffer.concat([rest, chunk])
    let from = 0
    for (let to; (to = bytes.indexOf('\n', from)) !== -1; from = to + 1) yield bytes.subarray(from, to)
    rest = bytes.subarray(from, from + maxBytes + 1)
  }
  yield rest
}

/** Throws at a malformed quote, because after such a quote the start of the next record is unknown. */
export async function * readCsv (
  chunks: AsyncIterable<Buffer>, maxBytes: number, user?: string
): AsyncGenerator<Line> {
  const records = pipeline(skipMark(chunks), parse({
    // Read cells as buffers. A cell that is not valid UTF-8 stays a buffer, and the schema rejects buffers.
    encoding: null,
    cast: (cell, { quoting }) => isUtf8(cell as never) ? toText(`${cell}`, quoting) : cell,
    info: true,
    record_delimiter: ['\r\n', '\n'],
    relax_column_count: true,
    skip_empty_lines: true,
    max_record_size: maxBytes
  }), () => {}) as AsyncIterable<{ record: Array<string | undefined>, info: { lines: number } }>
  let columns: string[] = []
  try {
    for await (const { record, info: { lines: number } } of records) {
      if (columns.length === 0) columns = checkHeader(record.map(String), columnsOf(user))
      else yield { number, text: () => toCsv(record), parse: () => toObject(columns, record) }
    }
  } catch (error) {
    if (!(error instanceof CsvError)) throw error
    throw new Error(`line ${error.lines}: expected at most ${maxBytes} bytes, and cells like "5"" pot"`)
  }
}

/** An empty cell without quotes means an absent value. */
const toText = (cell: string, quoting: boolean) => quoting || cell !== '' ? cell : undefined
const toCsv = (record: unknown[]) =>
  record.map((cell) => cell === undefined ? '' : `"${String(cell).replaceAll('"', '""')}"`).join()

function checkHeader (columns: string[], known: string[]): string[] {
  if (columns.every((name, index) => known.includes(name) && columns.indexOf(name) === index)) return columns
  throw new Error(`line 1: expected columns of ${known.join()}, each once, got ${columns.join()}`)
}

function toObject (columns: string[], record: unknown[]): unknown {
  if (record.length !== columns.length) throw invalid(`The line must have ${columns.length} cells.`)
  return Object.fromEntries(columns.map((name, index) => [name, record[index]]))
}

/** Skips a byte order mark. The option `bom` of csv-parse would also replace invalid UTF-8 after a mark. */
async function * skipMark (chunks: AsyncIterable<Buffer>): AsyncGenerator<Buffer> {
  let isFirst = true
  for await (const chunk of chunks) {
    yield isFirst && chunk.indexOf('\uFEFF') === 0 ? chunk.subarray(3) : chunk
    isFirst = false
  }
}
