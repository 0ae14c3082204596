// A table data gateway (Fowler): one object creates, deletes and lists the rows of one table. Each row has a
// user, and users get only their own rows. Requests of one kind share a statement. Long lists are sent page
// by page, within a memory budget. See docs/design/002-batches.md and docs/design/004-lists-in-pages.md.
// The statements follow from the definition of the table. table.ts defines a table, statements.ts has the
// SQL, pages.ts and lists.ts read, and list-routes.ts is for the routes of lists.
import type { Database, Row as ResultRow } from '../database/database.ts'
import { createBatcher, unbatched, type Identity, type Work } from '../scheduling/batcher.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { batchOptions, type GatewayConfig } from './batch-options.ts'
import { createLists } from './lists.ts'
import { createStatements } from './statements.ts'
import { byKey, type NewRow, type RowKey, type Table } from './table.ts'

type NewRowOf<Row> = Row & { id: number | bigint }

/** The returned functions read and change only the rows of the identity's user. */
export function createGateway<Row extends object> (
  database: Database, table: Table<keyof Row & string>, config: GatewayConfig, budget: MemoryBudget
) {
  const statements = createStatements(table)
  const writes = batchOptions(database, config, { maxItems: 512, maxInFlight: 1 })
  // More lists in a statement, or more statements in flight, would delay other users.
  const reads = batchOptions(database, config, { maxItems: 32, maxInFlight: 2 })
  const creates = createBatcher(insertAll, { ...writes, name: `${table.name}_create` })
  const deletes = createBatcher(deleteAll, { ...writes, name: `${table.name}_delete` })
  const comparisons = createBatcher((rows: Array<NewRow<Row> & Work>) => Promise.all(rows.map(isSame)),
    { ...reads, limits: unbatched, name: `${table.name}_compare` })

  async function insertAll (rows: Array<NewRow<Row> & Work>): Promise<boolean[]> {
    const sorted = rows.toSorted(byKey)
    const count = roundUpRows(rows.length)
    // Fill up with copies of the last row. `on conflict do nothing` skips all but the first row of a key.
    while (sorted.length < count) sorted.push(sorted.at(-1) as typeof sorted[0])
    return outcomesOf(rows, await database.write(statements.insert(count), sorted.flatMap(valuesOf)))
  }

  const isSame = async (row: NewRow<Row>) =>
    (await database.read(statements.same, valuesOf(row))).length > 0

  async function deleteAll (keys: Array<RowKey & Work>): Promise<boolean[]> {
    const sorted = keys.toSorted(byKey)
    const columns = [sorted.map(({ user }) => user), sorted.map(({ id }) => id)]
    const deleted = keys.length === 1
      ? await database.write(statements.deleteOne, columns.flat())
      : await database.write(statements.deleteMany, columns)
    return outcomesOf(keys, deleted)
  }

  const valuesOf = ({ user, id, row }: NewRow<Row>) =>
    [user, id, ...table.fields.map((field) => row[field])]

  const toWork = (identity: Identity, row: NewRowOf<Row>) =>
    ({ identity, user: identity.user, id: row.id.toString(), row, size: sizeOf(row) })

  const sizeOf = (row: Row) =>
    table.textFields.reduce((sum, field) => sum + (row[field] as string | undefined ?? '').length, 0)

  return {
    /** Returns false, and changes nothing, if the user already has a row with this id. */
    create: (identity: Identity, row: NewRowOf<Row>): Promise<boolean> => creates.add(toWork(identity, row)),

    /** Whether the user has this row: a row with this id and the same fields. */
    has: (identity: Identity, row: NewRowOf<Row>): Promise<boolean> =>
      comparisons.add(toWork(identity, row)),

    /** Returns false if the user has no row with this id. */
    delete: (identity: Identity, id: string): Promise<boolean> =>
      deletes.add({ identity, user: identity.user, id }),

    list: createLists<Row>(database, table, statements, budget, config.BODY_LIMIT, reads)
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
