// Detects whether a file is NDJSON or CSV, and reads the lines of the file.
import { isUtf8 } from 'node:buffer'
import { ApiError, errors } from '../../errors.ts'
import { parseJson } from '../../http/json.ts'
import { fields } from '../../plants/columns.ts'

export interface Line {
  /** Counts from 1. A CSV record of several lines has the number of its last line. */
  number: number
  text: string
  /** Throws an ApiError when the line is malformed. */
  parse: () => unknown
}

/** Lines of a file. `isValid` tells whether a line is UTF-8. Its parameter counts the file's lines from 0. */
interface Texts { texts: string[], isValid: (line: number) => boolean }

/** Yields the lines of each chunk in turn, because yielding every line from an async generator is slow. */
type Lines = AsyncGenerator<Iterable<Line>>

export const invalid = (message: string) => new ApiError(errors.FIELD_INVALID, { message })

/** Without `format` the file's extension decides. Standard input and output are NDJSON by default. */
export function findFormat (file = '.ndjson', format = /\.((?:ndjson|csv)(?:\.gz)?)$/.exec(file)?.[1]) {
  if (format !== undefined) return { isCsv: format.startsWith('csv'), isGzip: format.endsWith('.gz') }
  throw new Error(`${file}: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz`)
}

/** Skips blank lines. */
export async function * readNdjson (chunks: AsyncIterable<Buffer>, maxBytes: number): Lines {
  const parse = (text: string, isValid: boolean) => {
    if (isLonger(text, maxBytes)) throw invalid(`The line must not have more than ${maxBytes} bytes.`)
    if (!isValid) throw new ApiError(errors.BODY_NOT_UTF8)
    return parseJson(text)
  }
  let number = 0
  function * toLines ({ texts, isValid }: Texts): Generator<Line> {
    for (const text of texts) {
      const index = number++
      if (text !== '' && text !== '\r') yield { number, text, parse: () => parse(text, isValid(index)) }
    }
  }
  for await (const texts of splitLines(chunks, maxBytes)) yield toLines(texts)
}

/** Throws at a malformed quote, because after such a quote the start of the next record is unknown. */
export async function * readCsv (chunks: AsyncIterable<Buffer>, maxBytes: number, user?: string): Lines {
  let columns: string[] = []
  let number = 0
  // The record that is being read. A record continues on the next line while its number of quotes is odd.
  let [record, isValid, isOpen, firstLine] = ['', true, false, 1]
  const malformed = () =>
    new Error(`line ${firstLine}: expected at most ${maxBytes} bytes, and cells like "5"" pot"`)

  function * toLines (lines: Texts): Generator<Line> {
    for (const text of lines.texts) {
      const isValidLine = lines.isValid(number++)
      record = isOpen ? `${record}\n${text}` : text
      isValid = (isValid || !isOpen) && isValidLine
      if (!isOpen) firstLine = number
      if (text.includes('"') && text.split('"').length % 2 === 0) isOpen = !isOpen
      if (isLonger(record, maxBytes)) throw malformed()
      if (isOpen) continue
      if (record.endsWith('\r')) record = record.slice(0, -1)
      if (record === '') continue
      const cells = toCells(record)
      if (cells === undefined) throw malformed()
      const parse = toObject.bind(undefined, columns, cells, isValid)
      if (columns.length === 0) columns = checkHeader(cells.map(String), user)
      else yield { number, text: record, parse }
    }
  }
  for await (const texts of splitLines(chunks, maxBytes)) yield toLines(texts)
  if (isOpen) throw malformed()
}

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

function checkHeader (columns: string[], user?: string): string[] {
  const known = [...user === undefined ? ['user'] : [], 'id', ...fields]
  if (columns.every((name, index) => known.includes(name) && columns.indexOf(name) === index)) return columns
  throw new Error(`line 1: expected columns of ${known.join()}, each once, got ${columns.join()}`)
}

function toObject (columns: string[], cells: unknown[], isValid: boolean): unknown {
  if (!isValid) throw new ApiError(errors.BODY_NOT_UTF8)
  if (cells.length !== columns.length) throw invalid(`The line must have ${columns.length} cells.`)
  const object: Record<string, unknown> = {}
  for (const [index, name] of columns.entries()) object[name] = cells[index]
  return object
}

/** Skips a byte order mark. To save memory, truncates lines over `maxBytes` to `maxBytes` + 1 or more. */
async function * splitLines (chunks: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Texts> {
  let rest: Buffer | undefined
  let lines = 0
  for await (const chunk of chunks) {
    const bytes = rest === undefined ? withoutMark(chunk) : Buffer.concat([rest, chunk])
    const end = bytes.lastIndexOf('\n')
    if (end !== -1) {
      const texts = toTexts(bytes.subarray(0, end), lines)
      lines += texts.texts.length
      yield texts
    }
    rest = bytes.subarray(end + 1, end + maxBytes + 2)
  }
  if (rest !== undefined) yield toTexts(rest, lines)
}

function toTexts (bytes: Buffer, first: number): Texts {
  const texts = bytes.toString().split('\n')
  if (isUtf8(bytes)) return { texts, isValid: () => true }
  const lines = bytes.toString('latin1').split('\n')
  return { texts, isValid: (line) => isUtf8(Buffer.from(lines[line - first] as string, 'latin1')) }
}

const withoutMark = (bytes: Buffer) => bytes.indexOf('\uFEFF') === 0 ? bytes.subarray(3) : bytes
