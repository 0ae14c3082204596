// A table data gateway (Fowler): one object creates, deletes and lists the rows of one table. Each row has a
// user, and users get only their own rows. Requests of one kind share a statement. Long lists are sent page
// by page, within a memory budget. See docs/design/002-batches.md and docs/design/004-lists-in-pages.md.
// The statements follow from the definition of the table. table.ts defines a table, statements.ts has the
// SQL, pages.ts and lists.ts read, and list-routes.ts is for the routes of lists.
import type { Config } from '../config.ts'
import { maxInFlight, type Database, type Row as ResultRow } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { Batcher, type Identity, type Work } from '../scheduling/batcher.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { createLists } from './lists.ts'
import { createStatements } from './statements.ts'
import { byKey, type NewRow, type RowKey, type Table } from './table.ts'

export type GatewayConfig = Pick<Config, 'WRITE_BATCH' | 'MAX_QUEUED'>

type NewRowOf<Row> = Row & { id: number | bigint }

/** The returned functions read and change only the rows of the identity's user. */
export function createGateway<Row extends object> (
  database: Database, table: Table<keyof Row & string>, { WRITE_BATCH, MAX_QUEUED }: GatewayConfig,
  budget: MemoryBudget
) {
  const statements = createStatements(table)
  // On Citus, do not batch by default: one lost node would make the whole batch fail.
  const isOneByOne = WRITE_BATCH === undefined ? database.isDistributed : () => WRITE_BATCH === 1
  const maxItems = (most: number) => Math.min(most, WRITE_BATCH ?? most)

  /** If PostgreSQL rolls a batch back, for example at a locked row, each of its items runs alone. */
  function createWriter<Item extends RowKey & Work> (
    name: string, writeAll: (write: Database['write'], items: Item[]) => Promise<boolean[]>
  ) {
    const alone = new Batcher<Item, boolean>((items) => writeAll(database.write, items), {
      name: `${table.name}_${name}_alone`,
      maxItems: 1,
      maxInFlight: maxInFlight.writesAlone,
      // Locked rows of up to three users leave a place to the others.
      isOnePerUser: true,
      maxQueued: MAX_QUEUED
    })
    const together = new Batcher<Item, boolean>((items) => writeAll(database.writeBatch, items), {
      name: `${table.name}_${name}`,
      maxItems: maxItems(512),
      maxInFlight: maxInFlight.writeBatches,
      maxQueued: MAX_QUEUED,
      retries: { batcher: alone, isRetryable: wasRolledBack }
    })
    return (item: Item) => (isOneByOne() ? alone : together).add(item)
  }

  const create = createWriter('create', async (write, rows: Array<NewRow<Row> & Work>) => {
    const sorted = rows.toSorted(byKey)
    const count = roundUpRows(rows.length)
    // Fill up with copies of the last row. `on conflict do nothing` skips all but the first row of a key.
    while (sorted.length < count) sorted.push(sorted.at(-1) as typeof sorted[0])
    return outcomesOf(rows, await write(statements.insert(count), sorted.flatMap(valuesOf)))
  })

  const compare = new Batcher(async ([row]: Array<NewRow<Row> & Work>) =>
    [(await database.read(statements.same, valuesOf(row as NewRow<Row>))).length > 0],
  { name: `${table.name}_compare`, maxItems: 1, maxInFlight: maxInFlight.shortLists, maxQueued: MAX_QUEUED })

  const remove = createWriter('delete', async (write, keys: Array<RowKey & Work>) => {
    const sorted = keys.toSorted(byKey)
    const columns = [sorted.map(({ user }) => user), sorted.map(({ id }) => id)]
    const deleted = keys.length === 1
      ? await write(statements.deleteOne, columns.flat())
      : await write(statements.deleteMany, columns)
    return outcomesOf(keys, deleted)
  })

  const valuesOf = ({ user, id, row }: NewRow<Row>) =>
    [user, id, ...table.fields.map((field) => row[field])]

  const toWork = (identity: Identity, row: NewRowOf<Row>) =>
    ({ identity, user: identity.user, id: row.id.toString(), row, size: sizeOf(row) })

  const sizeOf = (row: Row) =>
    table.textFields.reduce((sum, field) => sum + (row[field] as string | undefined ?? '').length, 0)

  return {
    /** Returns false, and changes nothing, if the user already has a row with this id. */
    create: (identity: Identity, row: NewRowOf<Row>): Promise<boolean> => create(toWork(identity, row)),

    /** Whether the user has this row: a row with this id and the same fields. */
    has: (identity: Identity, row: NewRowOf<Row>): Promise<boolean> => compare.add(toWork(identity, row)),

    /** Returns false if the user has no row with this id. */
    delete: (identity: Identity, id: string): Promise<boolean> =>
      remove({ identity, user: identity.user, id }),

    list: createLists<Row>(database, table, statements, budget,
      { maxItems: maxItems(32), maxQueued: MAX_QUEUED, isOneByOne: database.isDistributed })
  }
}

/** Rounds up by at most a quarter. So only 32 row counts occur, each with its own prepared statement. */
function roundUpRows (rows: number): number {
  const step = 2 ** Math.max(0, 29 - Math.clz32(rows - 1))
  return Math.ceil(rows / step) * step
}

/** If several requests of one batch concern the same row, only the first request succeeds. */
function outcomesOf (keys: RowKey[], rows: ResultRow[]): boolean[] {
  if (rows.length === keys.length) return keys.map(() => true)
  const done = new Set(rows.map(([owner, id]) => `${id} ${owner}`))
  return keys.map(({ user, id }) => done.delete(`${id} ${user}`))
}
