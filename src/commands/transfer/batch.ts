// A batch of imported plants, and the statements that store the batch.
import { finished } from 'node:stream/promises'
import pg from 'pg'
import { from } from 'pg-copy-streams'
import { byKey, columnList, fields, type PlantKey, type PlantToStore } from '../../plants/plant.ts'

const columns = `owner, id${columnList}`
// One query string saves two round trips.
const copy = `savepoint before_copy; copy plants (${columns}) from stdin; release before_copy`
const stage = `create temp table if not exists staged on commit drop as select ${columns} from plants
  with no data; truncate staged; copy staged from stdin`
// PostgreSQL inserts the rows in the order of `byKey`. If lines repeat a key, it stores the first line.
const insert = `insert into plants (${columns}) select * from staged order by owner, id, ctid
  on conflict do nothing`
const uniqueViolation = '23505'

/** Plants as lines of COPY's text format. The garbage collector would take longer with objects. */
export class Batch {
  size = 0
  /** The characters of the lines. */
  length = 0
  /** Whether the plants have the order of `byKey`. */
  isSorted = true
  #last: PlantKey | undefined
  #lines: string[] = []
  readonly #encoded: Buffer[] = []

  add (added: PlantToStore): void {
    this.isSorted &&= this.#last === undefined || byKey(this.#last, added) <= 0
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

  /** Returns all lines, in the order of the calls of `add`. */
  lines (): Buffer {
    this.encode()
    return Buffer.concat(this.#encoded)
  }
}

/** Takes half of the time of `insertAll`. Returns false, and stores nothing, if one plant exists. */
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

/** Returns the number of plants that did not exist. */
export async function insertAll (client: pg.Client, lines: Buffer): Promise<number> {
  await finished(client.query(from(stage)).end(lines))
  return (await client.query(insert)).rowCount as number
}

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' }

const toLine = (cells: Array<string | undefined>) => `${cells.map(toText).join('\t')}\n`

function toText (cell: string | undefined): string {
  if (cell === undefined) return '\\N'
  return /[\\\t\n\r]/.test(cell) ? cell.replaceAll(/[\\\t\n\r]/g, (found) => escapes[found] as string) : cell
}
