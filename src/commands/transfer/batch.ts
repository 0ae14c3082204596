// A batch of imported rows, and the statements that store the batch.
import { finished } from 'node:stream/promises'
import pg from 'pg'
import { from } from 'pg-copy-streams'
import { byKey, type NewRow, type RowKey, type Table } from '../../table-gateway/table.ts'

/** The values of a row, by the names of the fields. */
export type Fields = Record<string, string | number | boolean | undefined>

const columnsOf = ({ columns }: Table) => ['owner', 'id', ...columns].join(', ')
// One query string saves two round trips.
const copyTo = (table: Table) =>
  `savepoint before_copy; copy ${table.name} (${columnsOf(table)}) from stdin; release before_copy`
const stageFor = (table: Table) => `create temp table if not exists staged on commit drop as
  select ${columnsOf(table)} from ${table.name} with no data; truncate staged; copy staged from stdin`
// PostgreSQL inserts the rows in the order of `byKey`. If lines repeat a key, it stores the first line. Count
// the returned rows: on Citus the statement's own row count is the number of staged rows.
const insertInto = (table: Table) => `with created as (
    insert into ${table.name} (${columnsOf(table)}) select * from staged order by owner, id, ctid
    on conflict do nothing returning 1
  ) select count(*) from created`
// unique_violation. For COPY, the coordinator of Citus reports an error of a worker as internal_error.
const mayBeDuplicate = ['23505', 'XX000']

/** The keys that exist for a dry run: keys of stored rows, and keys of earlier lines. */
export const createChecked = `create temp table checked (
    owner text collate "C", id bigint, primary key (owner, id)
  ) on commit drop`
// Because of `distinct`, PostgreSQL looks up each key, whatever the statistics say. It could turn a plain
// join around, and read the lines again for each row. Citus needs a subquery on a local table.
const addStored = ({ name }: Table) => `insert into checked
  select stored.* from (select owner, id from staged) as line cross join lateral (
    select distinct owner, id from ${name} where owner = line.owner and id = line.id
  ) as stored on conflict do nothing`
const addLines = 'insert into checked select owner, id from staged on conflict do nothing'

/** A batch with more characters is sent at once. */
const maxLength = 2 ** 19

/** Rows as lines of COPY's text format. The garbage collector would take longer with objects. */
export class Batch {
  size = 0
  /** Whether the rows have the order of `byKey`. */
  isSorted = true
  #length = 0
  #last: RowKey | undefined
  #lines: string[] = []
  readonly #fields: string[]
  readonly #encoded: Buffer[] = []

  constructor ({ fields }: Table) {
    this.#fields = fields
  }

  add (added: NewRow<Fields>): void {
    this.isSorted &&= this.#last === undefined || byKey(this.#last, added) <= 0
    this.#last = added
    const { user, id, row } = added
    const line = toLine([user, id, ...this.#fields.map((field) => row[field])])
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
 * Takes half of the time of `insertAll`. Returns false, and stores nothing, if one row exists. After some
 * other errors on Citus, also returns false: `insertAll` will fail for the same reason.
 */
export async function copyAll (client: pg.Client, table: Table, lines: Buffer): Promise<boolean> {
  try {
    await finished(client.query(from(copyTo(table))).end(lines))
    return true
  } catch (error) {
    if (!(error instanceof pg.DatabaseError && mayBeDuplicate.includes(error.code as string))) throw error
    await client.query('rollback to before_copy')
    return false
  }
}

const stageAll = (client: pg.Client, table: Table, lines: Buffer) =>
  finished(client.query(from(stageFor(table))).end(lines))

/** Returns the number of rows that did not exist. */
export async function insertAll (client: pg.Client, table: Table, lines: Buffer): Promise<number> {
  await stageAll(client, table, lines)
  const { rows: [row] } = await client.query(insertInto(table))
  return Number(row.count)
}

/** Returns the same number, but neither stores nor locks a row. Needs the table of `createChecked`. */
export async function checkAll (client: pg.Client, table: Table, lines: Buffer): Promise<number> {
  await stageAll(client, table, lines)
  await client.query(addStored(table))
  return (await client.query(addLines)).rowCount as number
}

const escapes: Record<string, string> = { '\\': '\\\\', '\t': '\\t', '\n': '\\n', '\r': '\\r' }

const toLine = (cells: Array<Fields[string]>) => `${cells.map(toText).join('\t')}\n`

function toText (cell: Fields[string]): string {
  if (cell === undefined) return '\\N'
  if (typeof cell !== 'string') return String(cell)
  return /[\\\t\n\r]/.test(cell) ? cell.replaceAll(/[\\\t\n\r]/g, (found) => escapes[found] as string) : cell
}
