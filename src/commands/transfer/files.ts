// Detects whether a file is NDJSON or CSV, and reads the lines of the file.
import { isUtf8 } from 'node:buffer'
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
  const parse = (bytes: Buffer) => {
    if (bytes.length <= maxBytes) return parseJsonBody(bytes)
    throw invalid(`The line must not have more than ${maxBytes} bytes.`)
  }
  let number = 0
  function * toLines (all: Buffer[]): Generator<Line> {
    for (const bytes of all) {
      number++
      const isBlank = bytes.length === 0 || (bytes.length === 1 && bytes[0] === 13)
      if (!isBlank) yield { number, text: () => bytes.toString(), parse: () => parse(bytes) }
    }
  }
  for await (const all of splitLines(chunks, maxBytes)) yield toLines(all)
}

/** Throws at a malformed quote, because after such a quote the start of the next record is unknown. */
export async function * readCsv (chunks: AsyncIterable<Buffer>, maxBytes: number, user?: string): Lines {
  let columns: string[] = []
  let number = 0
  // The record that is being read. A record continues on the next line while its number of quotes is odd.
  let [text, bytes, isValid, isOpen, firstLine] = ['', 0, true, false, 1]
  const malformed = () =>
    new Error(`line ${firstLine}: expected at most ${maxBytes} bytes, and cells like "5"" pot"`)

  function * toLines (all: Buffer[]): Generator<Line> {
    for (const line of all) {
      number++
      const lineText = line.toString()
      text = isOpen ? `${text}\n${lineText}` : lineText
      bytes = isOpen ? bytes + line.length + 1 : line.length
      isValid = (isValid || !isOpen) && isUtf8(line)
      if (!isOpen) firstLine = number
      if (lineText.split('"').length % 2 === 0) isOpen = !isOpen
      if (bytes > maxBytes) throw malformed()
      if (isOpen || /^\r?$/.test(text)) continue
      const record = text.replace(/\r$/, '')
      const cells = toCells(record)
      if (cells === undefined) throw malformed()
      const parse = toObject.bind(undefined, columns, cells, isValid)
      if (columns.length === 0) columns = checkHeader(cells.map(String), user)
      else yield { number, text: () => record, parse }
    }
  }
  for await (const all of splitLines(chunks, maxBytes)) yield toLines(all)
  if (isOpen) throw malformed()
}

/** Matches a cell such as `"5"" pot"` or `5 pot`. The last group is empty at the end of the record. */
const cell = /(?:"([^"]*(?:""[^"]*)*)"|([^",]*))(,|$)/y

/** An empty cell without quotes means an absent value. Returns undefined at a malformed quote. */
function toCells (record: string): Array<string | undefined> | undefined {
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
  return Object.fromEntries(columns.map((name, index) => [name, cells[index]]))
}

/** Skips a byte order mark. To save memory, truncates lines over `maxBytes` to `maxBytes` + 1 or more. */
async function * splitLines (chunks: AsyncIterable<Buffer>, maxBytes: number): AsyncGenerator<Buffer[]> {
  let rest: Buffer | undefined
  for await (const chunk of chunks) {
    const bytes = rest === undefined ? withoutMark(chunk) : Buffer.concat([rest, chunk])
    const lines = []
    let from = 0
    for (let to; (to = bytes.indexOf('\n', from)) !== -1; from = to + 1) lines.push(bytes.subarray(from, to))
    yield lines
    rest = bytes.subarray(from, from + maxBytes + 1)
  }
  if (rest !== undefined) yield [rest]
}

const withoutMark = (bytes: Buffer) => bytes.indexOf('\uFEFF') === 0 ? bytes.subarray(3) : bytes
