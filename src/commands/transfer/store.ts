// Stores the rows of an import: in batches, and in transactions of the given size.
import type pg from 'pg'
import type { Table } from '../../table-gateway/table.ts'
import { beginTransaction } from '../database.ts'

/** The owner, the id and the fields, in the order of the columns. */
export type Row = unknown[]

/** A batch ends when its lines have about as many bytes. */
const batchBytes = 2 ** 18
// The limit is long, because an insert waits for any other transaction that creates the same row.
const begin = `${beginTransaction}; set local statement_timeout = 60000`

/** A dry run is an import into the temporary table `checked`, which first gets the rows that exist. */
function statementsOf ({ name, columns, types }: Table, dryRun: boolean) {
  const list = ['owner', 'id', ...columns].join(', ')
  const arrays = ['text', 'bigint', ...types].map((type, index) => `$${index + 1}::${type}[]`)
  return {
    begin: dryRun ? `${begin}; create temp table checked (like ${name} including all) on commit drop` : begin,
    // Because of `distinct`, PostgreSQL looks up each key, whatever the statistics say: it could turn a plain
    // join around, and read the lines again for each row.
    findStored: dryRun && `insert into checked (${list})
      select stored.* from unnest(${arrays.slice(0, 2)}) as line (owner, id) cross join lateral (
        select distinct ${list} from ${name} where owner = line.owner and id = line.id
      ) as stored on conflict do nothing`,
    // Inserts in the order of `byKey`. If lines repeat a key, stores the first line. Counts the returned
    // rows: on Citus the statement's own row count is the number of selected rows. No column has a space in
    // its name.
    insert: `with created as (
        insert into ${dryRun ? 'checked' : name} (${list})
        select ${list} from unnest(${arrays}) with ordinality as line (${list}, "line number")
        order by owner collate "C", id, "line number" on conflict do nothing returning 1
      ) select count(*) from created`
  }
}

/**
 * `arrays` has an array of PostgreSQL for each column. With `note`, the transaction is committed after the
 * batch, and the summary then has this note.
 */
interface Batch { arrays: string[], count: number, note?: string }

const toArray = (cells: unknown[]) => `{${cells.map((cell) =>
  cell === undefined ? 'NULL' : `"${String(cell).replaceAll(/["\\]/g, '\\$&')}"`).join()}}`

/** A transaction stores up to `chunk` rows, and a dry run none. Calls `confirm` before each commit. */
export function createStore (
  client: pg.Client, table: Table, { chunk = Infinity, dryRun }: { chunk?: number, dryRun: boolean },
  confirm: () => Promise<unknown>
) {
  const statements = statementsOf(table, dryRun)
  let [created, existing, isOpen, note] = [0, 0, false, '']
  let committed = { created, existing }
  let [rows, bytes, total]: [Row[], number, number] = [[], 0, 0]
  let batches: Batch[] = []
  let stored: Promise<void> = Promise.resolve()

  function endBatch (note?: string): void {
    // pg would convert the values only after the earlier batch is stored, while PostgreSQL is idle.
    const columns = ['owner', 'id', ...table.columns].map((_, index) => rows.map((row) => row[index]))
    batches.push({ arrays: columns.map(toArray), count: rows.length, note });
    [rows, bytes] = [[], 0]
  }

  async function store ({ arrays, count, note: nextNote }: Batch): Promise<void> {
    if (count > 0) {
      if (!isOpen) await client.query(statements.begin)
      isOpen = true
      if (statements.findStored) await client.query(statements.findStored, arrays.slice(0, 2))
      const inserted = Number((await client.query(statements.insert, arrays)).rows[0].count)
      created += inserted
      existing += count - inserted
    }
    if (nextNote === undefined) return
    await confirm()
    note = '; the outcome of the last commit is unknown: import again'
    if (isOpen) await client.query(dryRun ? 'rollback' : 'commit')
    note = nextNote
    isOpen = false
    committed = { created, existing }
  }

  /** Sends the batches, and does not wait until the last one is stored: the import reads on meanwhile. */
  async function flush (bytesRead: number): Promise<void> {
    bytes += bytesRead
    if (bytes >= batchBytes) endBatch()
    const sent = batches
    batches = []
    for (const batch of sent) {
      // After a failed insert, `commit` would roll back without an error.
      await stored
      stored = store(batch)
      stored.catch(() => {})
    }
  }

  return {
    add (row: Row, lineNumber: number): void {
      rows.push(row)
      if (!dryRun && ++total % chunk === 0) endBatch(`; stored up to line ${lineNumber}`)
    },

    /** Call it after the rows of each chunk of the file. */
    flush,

    /** Stores the last batch. */
    async end (): Promise<void> {
      endBatch('')
      await flush(0)
      await stored
    },

    /** How many rows the database has received, perhaps without a commit. */
    rows: () => created + existing,

    summary: (rejected: number) => `${committed.created} created, ${committed.existing} existing, ` +
      `${rejected} rejected${dryRun ? '; nothing is stored' : note}`,

    /** Waits for the last batch, which may be committed. */
    [Symbol.asyncDispose]: () => stored.catch(() => {})
  }
}
