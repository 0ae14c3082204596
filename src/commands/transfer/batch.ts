// A batch of imported plants, and the statements that store the batch.
import { finished } from 'node:stream/promises'
import pg from 'pg'
import { from } from 'pg-copy-streams'
import { byKey, columnList, fields, types, type PlantKey, type PlantToStore } from '../../plants/plant.ts'

/** The user, the id and the fields of a plant. An absent field is undefined. */
type Cells = Array<string | undefined>

// One query string saves two round trips.
const copy = `savepoint before_copy; copy plants (owner, id${columnList}) from stdin; release before_copy`
const arrays = fields.map((field, index) => `, $${index + 3}::${types[field]}[]`).join('')
// PostgreSQL inserts the rows of `unnest` in the order of the arrays.
const insert = `insert into plants (owner, id${columnList})
  select * from unnest($1::text[], $2::bigint[]${arrays}) on conflict do nothing`
const uniqueViolation = '23505'

/** Plants as lines of COPY's text format. The garbage collector would take longer with objects. */
export class Batch {
  size = 0
  /** The characters of the lines. */
  length = 0
  #isSorted = true
  #last: PlantKey | undefined
  #lines: string[] = []
  readonly #encoded: Buffer[] = []

  add (added: PlantToStore): void {
    this.#isSorted &&= this.#last === undefined || byKey(this.#last, added) <= 0
    this.#last = added
    const { user, id, plant } = added
    const line = toLine([user, id, ...fields.map((field) => plant[field])])
    this.#lines.push(line)
    this.length += line.length
    this.size++
  }

  /** Releases the strings of the lines. Call often: then the garbage collector copies few strings. */
  encode (): void {
    this.#encoded.push(Buffer.from(this.#lines.join('')))
    this.#lines = []
  }

  /** Returns the lines in the order of `byKey`. */
  sorted (): Buffer {
    this.encode()
    const lines = Buffer.concat(this.#encoded)
    return this.#isSorted ? lines : Buffer.from(parse(lines).toSorted(byKeyCells).map(toLine).join(''))
  }
}

/** Takes a third of the time of `insertAll`. Returns false, and stores nothing, if one plant exists. */
export async function copyAll (client: pg.Client, lines: Buffer): Promise<boolean> {
  try {
    await finished(client.query(from(copy)).end(lines))
    return true
  } catch (error) {
    if (!(error instanceof pg.DatabaseError && error.code === uniqueViolation)) throw error
    await client.query('rollback to before_copy')
    return false
  }
}

/** Returns the number of plants that did not exist. If `lines` repeat a key, stores the key's first plant. */
export async function insertAll (client: pg.Client, lines: Buffer): Promise<number> {
  const rows = parse(lines)
  const columns = ['owner', 'id', ...fields].map((_, column) => rows.map((cells) => cells[column]))
  return (await client.query(insert, columns)).rowCount as number
}

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' }
const unescapes = Object.fromEntries(Object.entries(escapes).map(([character, text]) => [text, character]))

const toLine = (cells: Cells) => `${cells.map(toText).join('\t')}\n`

function toText (cell: string | undefined): string {
  if (cell === undefined) return '\\N'
  return /[\\\t\n\r]/.test(cell) ? cell.replaceAll(/[\\\t\n\r]/g, (found) => escapes[found] as string) : cell
}

const parse = (lines: Buffer): Cells[] =>
  lines.toString().split('\n').slice(0, -1).map((line) => line.split('\t').map(toCell))

function toCell (text: string): string | undefined {
  if (text === '\\N') return undefined
  return text.includes('\\') ? text.replaceAll(/\\./g, (found) => unescapes[found] as string) : text
}

const keyOf = ([user, id]: Cells) => ({ user, id }) as PlantKey
const byKeyCells = (one: Cells, other: Cells) => byKey(keyOf(one), keyOf(other))
