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
// PostgreSQL inserts the rows in the order of `byKey`. If lines repeat a key, it stores the first line. Count
// the returned rows: on Citus the statement's own row count is the number of staged rows.
const insert = `with created as (
    insert into plants (${columns}) select * from staged order by owner, id, ctid
    on conflict do nothing returning 1
  ) select count(*) from created`
// unique_violation. For COPY, the coordinator of Citus reports an error of a worker as internal_error.
const mayBeDuplicate = ['23505', 'XX000']

/** The keys that exist for a dry run: keys of stored plants, and keys of earlier lines. */
export const createChecked = `create temp table checked (
    owner text collate "C", id bigint, primary key (owner, id)
  ) on commit drop`
// Because of `distinct`, PostgreSQL looks up each key, whatever the statistics say. It could turn a plain join
// around, and read the lines again for each plant. Citus needs a subquery on a local table.
const addStored = `insert into checked select stored.* from (select owner, id from staged) as line
  cross join lateral (
    select distinct owner, id from plants where owner = line.owner and id = line.id
  ) as stored on conflict do nothing`
const addLines = 'insert into checked select owner, id from staged on conflict do nothing'

/** A batch with more characters is sent at once. */
const maxLength = 2 ** 19

/** Plants as lines of COPY's text format. The garbage collector would take longer with objects. */
export class Batch {
  size = 0
  /** Whether the plants have the order of `byKey`. */
  isSorted = true
  #length = 0
  #last: PlantKey | undefined
  #lines: string[] = []
  readonly #encoded: Buffer[] = []

  add (added: PlantToStore): void {
    this.isSorted &&= this.#last === undefined || byKey(this.#last, added) <= 0
    this.#last = added
    const { user, id, plant } = added
    const line = toLine([user, id, ...fields.map((field) => plant[field])])
    this.#lines.push(line)
    this.#length += line.length
    this.size++
  }

  isLarge = () => this.#length >= maxLength

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

/**
 * Takes half of the time of `insertAll`. Returns false, and stores nothing, if one plant exists. After some
 * other errors on Citus, also returns false: `insertAll` will fail for the same reason.
 */
export async function copyAll (client: pg.Client, lines: Buffer): Promise<boolean> {
  try {
    await finished(client.query(from(copy)).end(lines))
    return true
  } catch (error) {
    if (!(error instanceof pg.DatabaseError && mayBeDuplicate.includes(error.code as string))) throw error
    await client.query('rollback to before_copy')
    return false
  }
}

const stageAll = (client: pg.Client, lines: Buffer) => finished(client.query(from(stage)).end(lines))

/** Returns the number of plants that did not exist. */
export async function insertAll (client: pg.Client, lines: Buffer): Promise<number> {
  await stageAll(client, lines)
  const { rows: [row] } = await client.query(insert)
  return Number(row.count)
}

/** Returns the same number, but neither stores nor locks a plant. Needs the table of `createChecked`. */
export async function checkAll (client: pg.Client, lines: Buffer): Promise<number> {
  await stageAll(client, lines)
  await client.query(addStored)
  return (await client.query(addLines)).rowCount as number
}

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' }

const toLine = (cells: Array<string | undefined>) => `${cells.map(toText).join('\t')}\n`

function toText (cell: string | undefined): string {
  if (cell === undefined) return '\\N'
  return /[\\\t\n\r]/.test(cell) ? cell.replaceAll(/[\\\t\n\r]/g, (found) => escapes[found] as string) : cell
}
