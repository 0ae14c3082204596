// Detects whether a file is NDJSON or CSV, and reads the lines of the file.
import { isUtf8 } from 'node:buffer'
import type { Readable } from 'node:stream'
import { createGunzip } from 'node:zlib'
import { parse } from 'csv-parse'
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

/** Without `format` the file's extension decides. Standard input and output are NDJSON by default. */
export function findFormat (file = '.ndjson', format = /\.((?:ndjson|csv)(?:\.gz)?)$/.exec(file)?.[1]) {
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

// The readers yield the lines of each chunk together, because yielding every line from an async generator is
// slow. They split latin1, where each byte is a character: so only lines that are not UTF-8 are rejected.

/** Skips blank lines. To save memory, shortens lines over `maxBytes`. */
export async function * readNdjson (chunks: AsyncIterable<Buffer>, maxBytes: number) {
  let [rest, number] = ['', 0]
  const parse = (text: string) => {
    if (text.length > maxBytes) throw invalid(`The line must not have more than ${maxBytes} bytes.`)
    return parseJson(toUtf8(text))
  }
  const toLines = (text: string): Line[] => ++number && /^\r?$/.test(text)
    ? []
    : [{ number, text: () => decode(text), parse: () => parse(text) }]
  for await (const text of readText(chunks, false)) {
    const texts = (rest + text).split('\n')
    rest = (texts.pop() as string).slice(0, maxBytes + 1)
    yield texts.flatMap(toLines)
  }
  yield toLines(rest)
}

/**
 * Throws at a malformed quote, because after such a quote the start of the next record is unknown. In the
 * columns `emptyTexts`, an empty cell is an empty text, not an absent value.
 */
export async function * readCsv (
  chunks: AsyncIterable<Buffer>, maxBytes: number, table: Table, user?: string, emptyTexts: string[] = []
) {
  let [records, columns, number]: [Cell[][], string[], number] = [[], [], 0]
  const parser = parse({
    record_delimiter: ['\n', '\r\n'],
    encoding: 'latin1',
    relax_column_count: true,
    max_record_size: maxBytes,
    cast: (cell, { quoting }) => cell === '' && !quoting ? undefined : cell,
    // Returns nothing, so that the parser keeps no record.
    on_record: (cells) => { records.push(cells) }
  }).on('error', () => {})

  function * toLines (): Generator<Line> {
    for (const cells of records.splice(0)) {
      for (const cell of [...cells, '\n']) if (cell?.includes('\n')) number += cell.split('\n').length - 1
      if (cells.length === 1 && cells[0] === undefined) continue
      const parse = () => toObject(columns, cells, table, emptyTexts)
      if (columns.length > 0) yield { number, text: () => decode(cells.map(quote).join()), parse }
      else columns = checkHeader(cells.map((cell = '') => decode(cell)), table, user)
    }
  }
  async function * run (write: (done: (error?: Error | null) => void) => void) {
    const error = await new Promise<Error | null | undefined>(write)
    yield toLines()
    if (!error) return
    throw new Error(`line ${number + 1}: ${error.message}. Expected cells like "5"" pot", and at most ` +
      `${maxBytes} bytes.`)
  }
  for await (const text of readText(chunks, true)) yield * run((done) => parser.write(text, 'latin1', done))
  yield * run((done) => parser.end(done))
}

/** Writes the cell of a rejected record again. */
const quote = (cell: Cell) =>
  cell === '' || /[",\n\r]/.test(cell ?? '') ? `"${cell?.replaceAll('"', '""')}"` : cell

/** Yields latin1, without a byte order mark. Throws if the start shows another encoding or kind of CSV. */
async function * readText (chunks: AsyncIterable<Buffer>, isCsv: boolean): AsyncGenerator<string> {
  let [text, isChecked] = ['', false]
  for await (const chunk of chunks) {
    text += chunk.toString('latin1')
    if (!isChecked && text.length < 4096 && !text.includes('\n')) continue
    yield isChecked ? text : checkStart(text, isCsv)
    isChecked = true
    text = ''
  }
  yield isChecked ? text : checkStart(text, isCsv)
}

/** What is wrong with a file that starts so, in NDJSON and CSV, or only in CSV. */
const faults: Array<[start: RegExp, fault: string, isOfAll?: true]> = [
  // In UTF-16, every second byte of ASCII is zero.
  [/^[^]{0,3}\0/, 'the file is UTF-16, not UTF-8', true],
  [/^[^\n]*\r(?!\n|$)/, 'the lines end in CR without LF'],
  [/^[^,\n]*;/, 'the cells are separated by semicolons, not commas'],
  [/^[^,\n]*\t/, 'the cells are separated by tabs, not commas']
]

function checkStart (text: string, isCsv: boolean): string {
  const [, fault] = faults.find(([start,, isOfAll]) => (isCsv || isOfAll) && start.test(text)) ?? []
  if (fault !== undefined) throw new Error(`line 1: ${fault}. ${advice}`)
  return text.replace(/^\xEF\xBB\xBF/, '')
}

const decode = (latin1: string) => Buffer.from(latin1, 'latin1').toString()

function toUtf8 (latin1: string): string {
  if (!/[\x80-\xFF]/.test(latin1)) return latin1
  if (isUtf8(Buffer.from(latin1, 'latin1'))) return decode(latin1)
  throw invalid(`The line is not valid UTF-8. ${advice}`)
}

function checkHeader (columns: string[], { fields }: Table, user?: string): string[] {
  const known = [...user === undefined ? ['user'] : [], 'id', ...fields]
  if (columns.every((name, index) => known.includes(name) && columns.indexOf(name) === index)) return columns
  // Quotes show spaces at the ends of a name.
  const got = columns.map((name) => JSON.stringify(name)).join().replace(/(?<=^.{100}).+/, '…')
  throw new Error(`line 1: expected columns of ${known.join()}, each once, got ${got}. ${advice}`)
}

/** Matches a number or a boolean in JSON. */
const scalar = /^(?:true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[Ee][+-]?\d+)?)$/

function toObject (columns: string[], cells: Cell[], { scalarFields }: Table, emptyTexts: string[]): unknown {
  if (cells.length !== columns.length) throw invalid(`The line must have ${columns.length} cells.`)
  return Object.fromEntries(columns.map((name, index) => {
    const cell = cells[index] ?? (emptyTexts.includes(name) ? '' : undefined)
    const isScalar = cell && scalarFields.includes(name) && scalar.test(cell)
    return [name, isScalar ? JSON.parse(cell) : cell && toUtf8(cell)]
  }))
}
