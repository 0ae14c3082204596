// Stores the rows of an import: in batches, and in transactions of the given size.
import { finished } from 'node:stream/promises'
import type pg from 'pg'
import { from } from 'pg-copy-streams'
import type { NewRow, Table } from '../../table-gateway/table.ts'

/** The values of a row, by the names of the fields. */
export type Fields = Record<string, string | number | boolean | undefined>

/** A batch with more characters is stored at once. */
const maxLength = 2 ** 18
// Set the limit in the transaction: a pooler loses the settings of a session. The limit is long, because an
// insert waits for any other transaction that creates the same row. If the network drops the connection in
// the middle of a COPY, this limit does not end the session. The keepalive probes end it after 60 s.
const begin = 'begin; set local statement_timeout = 60000; set local tcp_keepalives_idle = 20; ' +
  'set local tcp_keepalives_interval = 5; set local tcp_keepalives_count = 8'

/** A dry run is an import into the temporary table `checked`, which first gets the rows that exist. */
function statementsOf ({ name, columns }: Table, dryRun: boolean) {
  const list = ['owner', 'id', ...columns].join(', ')
  return {
    begin: dryRun ? `${begin}; create temp table checked (like ${name} including all) on commit drop` : begin,
    copy: `create temp table if not exists staged on commit drop as select ${list} from ${name} with no data;
      truncate staged; copy staged from stdin (format csv)`,
    // Because of `distinct`, PostgreSQL looks up each key, whatever the statistics say: it could turn a plain
    // join around, and read the lines again for each row. Citus needs a subquery on a local table.
    findStored: dryRun && `insert into checked (${list})
      select stored.* from (select owner, id from staged) as line cross join lateral (
        select distinct ${list} from ${name} where owner = line.owner and id = line.id
      ) as stored on conflict do nothing`,
    // Inserts in the order of `byKey`. If lines repeat a key, stores the first line. Counts the returned
    // rows: on Citus the statement's own row count is the number of staged rows.
    insert: `with created as (
        insert into ${dryRun ? 'checked' : name} (${list}) select * from staged order by owner, id, ctid
        on conflict do nothing returning 1
      ) select count(*) from created`
  }
}

/** A transaction stores up to `chunk` rows, and a dry run none. Calls `confirm` before each commit. */
export function createStore (
  client: pg.Client, table: Table, { chunk = Infinity, dryRun }: { chunk?: number, dryRun: boolean },
  confirm: () => Promise<unknown>
) {
  const statements = statementsOf(table, dryRun)
  let [created, existing, uncommitted, note] = [0, 0, 0, '']
  let committed = { created, existing }
  /** The next batch, in CSV. The garbage collector would take longer with objects. */
  let [lines, length]: [string[], number] = [[], 0]
  let stored: Promise<void> = Promise.resolve()
  const isChunk = () => !dryRun && uncommitted + lines.length >= chunk

  async function store (batch: string[]): Promise<void> {
    await finished(client.query(from(statements.copy)).end(batch.join('')))
    if (statements.findStored) await client.query(statements.findStored)
    const count = Number((await client.query(statements.insert)).rows[0].count)
    created += count
    existing += batch.length - count
  }

  return {
    add ({ user, id, row }: NewRow<Fields>): void {
      const line = `${[user, id, ...table.fields.map((field) => row[field])].map(toCell).join()}\n`
      length += line.length
      lines.push(line)
    },

    isFull: () => length >= maxLength || isChunk(),

    /**
     * Sends the batch, and does not wait until the rows are stored: the import reads on meanwhile. Commits if
     * the chunk is full, or without `lineNumber`, which is the line of the last row.
     */
    async send (lineNumber?: number): Promise<void> {
      const [batch, isLast] = [lines, lineNumber === undefined || isChunk()];
      [lines, length] = [[], 0]
      await stored
      if (uncommitted === 0 && batch.length > 0) await client.query(statements.begin)
      uncommitted += batch.length
      if (batch.length > 0) stored = store(batch)
      stored.catch(() => {})
      if (!isLast) return
      // Await the insert first. After a failed insert, `commit` would roll back without an error.
      await stored
      await confirm()
      note = '; the outcome of the last commit is unknown: import again'
      if (uncommitted > 0) await client.query(dryRun ? 'rollback' : 'commit')
      note = lineNumber === undefined ? '' : `; stored up to line ${lineNumber}`
      uncommitted = 0
      committed = { created, existing }
    },

    /** How many rows the database has received, perhaps without a commit. */
    rows: () => created + existing,

    summary: (rejected: number) => `${committed.created} created, ${committed.existing} existing, ` +
      `${rejected} rejected${dryRun ? '; nothing is stored' : note}`
  }
}

const toCell = (value: Fields[string]) =>
  typeof value === 'string' ? `"${value.replaceAll('"', '""')}"` : value
