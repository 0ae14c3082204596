// Stores the rows of an import: in batches, and in transactions of the given size.
import { finished } from 'node:stream/promises'
import type pg from 'pg'
import { from } from 'pg-copy-streams'
import type { Table } from '../../table-gateway/table.ts'

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
  const checked = `create temp table checked (like ${name} including all) on commit drop;`
  return {
    begin: `${begin}; create temp table staged on commit drop as select ${list} from ${name} with no data;
      ${dryRun ? checked : ''} copy staged from stdin (format csv)`,
    copy: 'truncate staged; copy staged from stdin (format csv)',
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

/** With `note`, the transaction is committed after the batch, and the summary then has this note. */
interface Batch { csv: Buffer, rows: number, note?: string }

/** A transaction stores up to `chunk` rows, and a dry run none. Calls `confirm` before each commit. */
export function createStore (
  client: pg.Client, table: Table, { chunk = Infinity, dryRun }: { chunk?: number, dryRun: boolean },
  confirm: () => Promise<unknown>
) {
  const statements = statementsOf(table, dryRun)
  let [created, existing, isOpen, note] = [0, 0, false, '']
  let committed = { created, existing }
  let [csv, length, rows, total] = ['', 0, 0, 0]
  /** The start of the next batch. The garbage collector would copy strings again and again. */
  let encoded: Buffer[] = []
  let batches: Batch[] = []
  let stored: Promise<void> = Promise.resolve()

  function encode (): void {
    encoded.push(Buffer.from(csv))
    csv = ''
  }

  function endBatch (note?: string): void {
    encode()
    batches.push({ csv: Buffer.concat(encoded), rows, note });
    [encoded, length, rows] = [[], 0, 0]
  }

  async function store (batch: Batch): Promise<void> {
    if (batch.rows > 0) {
      await finished(client.query(from(isOpen ? statements.copy : statements.begin)).end(batch.csv))
      isOpen = true
      if (statements.findStored) await client.query(statements.findStored)
      const count = Number((await client.query(statements.insert)).rows[0].count)
      created += count
      existing += batch.rows - count
    }
    if (batch.note === undefined) return
    await confirm()
    note = '; the outcome of the last commit is unknown: import again'
    if (isOpen) await client.query(dryRun ? 'rollback' : 'commit')
    note = batch.note
    isOpen = false
    committed = { created, existing }
  }

  /** Sends the batches, and does not wait until the last one is stored: the import reads on meanwhile. */
  async function flush (): Promise<void> {
    encode()
    if (length >= maxLength) endBatch()
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
    /** `row` is in CSV, in the order of the columns. Call `flush` often. */
    add (row: string, lineNumber: number): void {
      csv += row
      length += row.length
      rows++
      if (!dryRun && ++total % chunk === 0) endBatch(`; stored up to line ${lineNumber}`)
    },

    flush,

    /** Stores the last batch. */
    async end (): Promise<void> {
      endBatch('')
      await flush()
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
