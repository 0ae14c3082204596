// Detects whether a file is NDJSON or CSV, and reads the lines of the file.
import { isUtf8 } from 'node:buffer'
import { ApiError, errors } from '../../errors.ts'
import { parseJson } from '../../http/json.ts'
import type { Table } from '../../table-gateway/table.ts'
import { UsageError } from '../format.ts'

export interface Line {
  /** Counts from 1. A CSV record of several lines has the number of its last line. */
  number: number
  text: string
  /** Throws an ApiError when the line is malformed. */
  parse: () => unknown
}

/** A line before its format is known. If the line is not UTF-8, `isValid` is false. */
type RawLine = Pick<Line, 'number' | 'text'> & { isValid: boolean }

export const invalid = (message: string) => new ApiError(errors.FIELD_INVALID, { message })

/** Without `format` the file's extension decides. Standard input and output are NDJSON by default. */
export function findFormat (file = '.ndjson', format = /\.((?:ndjson|csv)(?:\.gz)?)$/.exec(file)?.[1]) {
  if (format !== undefined) return { isCsv: format.startsWith('csv'), isGzip: format.endsWith('.gz') }
  throw new UsageError(
    `${file}: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz`)
}

/** Skips blank lines. */
export async function * readNdjson (chunks: AsyncIterable<Buffer>, maxBytes: number) {
  const parse = ({ text, isValid }: RawLine) => {
    if (isLonger(text, maxBytes)) throw invalid(`The line must not have more than ${maxBytes} bytes.`)
    if (!isValid) throw new ApiError(errors.BODY_NOT_UTF8)
    return parseJson(text)
  }
  for await (const lines of splitLines(chunks, maxBytes)) {
    yield lines.filter(({ text }) => !isBlank(text)).map((line) => ({ ...line, parse: () => parse(line) }))
  }
}

/**
 * Throws at a malformed quote, because after such a quote the start of the next record is unknown. In the
 * columns `emptyTexts`, an empty cell is an empty text, not an absent value.
 */
export async function * readCsv (
  chunks: AsyncIterable<Buffer>, maxBytes: number, table: Table, user?: string, emptyTexts: string[] = []
) {
  let columns: string[] = []
  // The record that is being read. A record continues on the next line while its number of quotes is odd.
  let [record, isValid, isOpen, firstLine] = ['', true, false, 1]
  const malformed = () =>
    new Error(`line ${firstLine}: expected at most ${maxBytes} bytes, and cells like "5"" pot"`)

  function * toRecords (lines: RawLine[]): Generator<Line> {
    for (const { number, text, isValid: isValidLine } of lines) {
      record = isOpen ? `${record}\n${text}` : text
      isValid = (isValid || !isOpen) && isValidLine
      if (!isOpen) firstLine = number
      if (text.includes('"') && text.split('"').length % 2 === 0) isOpen = !isOpen
      if (isLonger(record, maxBytes)) throw malformed()
      if (isOpen || isBlank(record)) continue
      record = record.replace(/\r$/, '')
      const cells = toCells(record)
      if (cells === undefined) throw malformed()
      const parse = () => toObject(columns, cells, isValid, table, emptyTexts)
      if (columns.length === 0) columns = checkHeader(cells.map((name = '') => name), table, user)
      else yield { number, text: record, parse }
    }
  }
  for await (const lines of splitLines(chunks, maxBytes)) yield toRecords(lines)
  if (isOpen) throw malformed()
}

const isBlank = (text: string) => text === '' || text === '\r'

// Most lines are short, and a UTF-16 code unit takes at most three bytes.
const isLonger = (text: string, maxBytes: number) =>
  text.length * 3 > maxBytes && Buffer.byteLength(text) > maxBytes

/** Matches a cell such as `"5"" pot"` or `5 pot`. The last group is empty at the end of the record. */
const cell = /(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|$)/y

/** An empty cell without quotes means an absent value. Returns undefined at a malformed quote. */
function toCells (record: string): Array<string | undefined> | undefined {
  if (!record.includes('"')) return record.split(',').map((text) => text || undefined)
  const cells = []
  cell.lastIndex = 0
  for (let match; (match = cell.exec(record)) !== null;) {
    const [, quoted, plain, end] = match
    cells.push(quoted?.replaceAll('""', '"') ?? (plain || undefined))
    if (end === '') return cells
  }
}

function checkHeader (columns: string[], { fields }: Table, user?: string): string[] {
  const known = [...user === undefined ? ['user'] : [], 'id', ...fields]
  if (columns.every((name, index) => known.includes(name) && columns.indexOf(name) === index)) return columns
  const got = columns.join()
  throw new Error(`line 1: expected columns of ${known.join()}, each once, separated by commas, got ` +
    (got.length > 100 ? `${got.slice(0, 100)}…` : got))
}

/** Matches a number or a boolean in JSON. */
const scalar = /^(?:true|false|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[Ee][+-]?\d+)?)$/

function toObject (
  columns: string[], cells: Array<string | undefined>, isValid: boolean, { scalarFields }: Table,
  emptyTexts: string[]
): unknown {
  if (!isValid) throw new ApiError(errors.BODY_NOT_UTF8)
  if (cells.length !== columns.length) throw invalid(`The line must have ${columns.length} cells.`)
  const object: Record<string, unknown> = {}
  for (const [index, name] of columns.entries()) {
    const cell = cells[index] ?? (emptyTexts.includes(name) ? '' : undefined)
    object[name] = cell && scalarFields.includes(name) && scalar.test(cell) ? JSON.parse(cell) : cell
  }
  return object
}

// Yields the lines of each chunk together, because yielding every line from an async generator is slow. Skips
// a byte order mark. To save memory, truncates lines over `maxBytes` to `maxBytes` + 1 or more.
async function * splitLines (chunks: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<RawLine[]> {
  let rest = Buffer.alloc(0)
  let number = 0
  const toLine = (text: string, isValid: boolean) => {
    number++
    // In UTF-16, every second byte of ASCII is zero.
    if (number === 1 && text.slice(0, 4).includes('\0')) {
      throw new Error('line 1: expected UTF-8, got UTF-16. ' +
        'Convert the file: iconv --from-code=UTF-16 --to-code=UTF-8')
    }
    return { number, text: number === 1 ? text.replace(/^\uFEFF/, '') : text, isValid }
  }
  const toLines = (bytes: Buffer): RawLine[] => isUtf8(bytes)
    ? bytes.toString().split('\n').map((text) => toLine(text, true))
    : bytes.toString('latin1').split('\n').map((latin1) => Buffer.from(latin1, 'latin1'))
      .map((line) => toLine(line.toString(), isUtf8(line)))
  for await (const chunk of chunks) {
    const bytes = Buffer.concat([rest, chunk])
    const end = bytes.lastIndexOf('\n')
    if (end !== -1) yield toLines(bytes.subarray(0, end))
    rest = bytes.subarray(end + 1, end + maxBytes + 2)
  }
  yield toLines(rest)
}
