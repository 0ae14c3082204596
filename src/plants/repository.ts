// Creates, deletes and lists plants in the database.
import type { Config } from '../config.ts'
import type { Database, Row, Statement } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { createBatcher, singles, type Identity, type Work } from '../scheduling/batcher.ts'
import type { MemoryBudget } from '../scheduling/memory-budget.ts'
import { createLists } from './lists.ts'
import {
  byKey, columnList, fields, textFields, type NewPlant, type PlantKey, type PlantToStore
} from './plant.ts'

export type Plants = ReturnType<typeof createPlants>

/** The returned functions read and change only the plants of the identity's user. */
export function createPlants (
  database: Database, config: Pick<Config, 'WRITE_BATCH' | 'MAX_QUEUED' | 'BODY_LIMIT'>, budget: MemoryBudget
) {
  const { WRITE_BATCH: batchSize = Infinity, MAX_QUEUED } = config
  const batching = (maxItems: number, maxInFlight: number) => ({
    limits: batchSize === 1 ? singles : { maxItems: Math.min(maxItems, batchSize), maxInFlight },
    // On Citus, do not batch by default: one lost node would make the whole batch fail.
    isOneByOne: config.WRITE_BATCH === undefined ? database.isDistributed : undefined,
    maxQueued: MAX_QUEUED,
    isRetryable: wasRolledBack
  })
  const batch = batching(512, 1)
  const creates = createBatcher((plants: Array<PlantToStore & Work>) => insertAll(database, plants),
    { ...batch, name: 'create' })
  const deletes = createBatcher((keys: Array<PlantKey & Work>) => deleteAll(database, keys),
    { ...batch, name: 'delete' })

  return {
    /** Returns false, and changes nothing, if the user already has a plant with this id. */
    create: (identity: Identity, plant: NewPlant): Promise<boolean> =>
      creates.add({ identity, user: identity.user, id: plant.id.toString(), plant, size: sizeOf(plant) }),

    /** Returns false if the user has no plant with this id. */
    delete: (identity: Identity, id: string): Promise<boolean> =>
      deletes.add({ identity, user: identity.user, id }),

    // More lists in a statement, or more statements in flight, would delay other users.
    list: createLists(database, budget, config.BODY_LIMIT, batching(32, 2))
  }
}

const sizeOf = (plant: NewPlant) => textFields.reduce((sum, field) => sum + (plant[field]?.length ?? 0), 0)

// Use a `values` list: Citus can route each of its rows to a node, but cannot route the rows of `unnest`.
function insertOf (rows: number): Statement {
  const row = `(${Array(2 + fields.length).fill('?').join(', ')})`
  let parameter = 0
  const values = Array(rows).fill(row).join(', ').replaceAll('?', () => `$${++parameter}`)
  return {
    name: rows === 1 ? 'plant-insert' : 'plants-insert',
    preparedAs: `plants-insert-${rows}`,
    text: `insert into plants (owner, id${columnList}) values ${values}
      on conflict do nothing returning owner, id`
  }
}
const inserts: Statement[] = []
const deleteOne = {
  name: 'plant-delete',
  text: 'delete from plants where owner = $1 and id = $2 returning owner, id'
}
// The subselects hide the arrays' lengths from the planner. Otherwise PostgreSQL would replan, which almost
// doubles a small batch's time. With `any`, PostgreSQL can only look up each key. With `plants.owner =
// key.owner`, it would read the whole table if the table was small when the statement was prepared.
const deleteMany = {
  name: 'plants-delete',
  text: `delete from plants using unnest((select $1::text[]), (select $2::bigint[])) as key (owner, id)
    where plants.owner = any (array[key.owner]) and plants.id = key.id returning plants.owner, plants.id`
}

async function insertAll (database: Database, plants: PlantToStore[]): Promise<boolean[]> {
  const rows = plants.toSorted(byKey)
  const size = roundUpRows(rows.length)
  // Fill up with copies of the last row. `on conflict do nothing` skips all but the first row of a key.
  while (rows.length < size) rows.push(rows.at(-1) as PlantToStore)
  const values = rows.flatMap(({ user, id, plant }) => [user, id, ...fields.map((field) => plant[field])])
  const insert = inserts[size] ??= insertOf(size)
  return outcomesOf(plants, await database.write(insert, values))
}

async function deleteAll (database: Database, keys: PlantKey[]): Promise<boolean[]> {
  const sorted = keys.toSorted(byKey)
  const columns = [sorted.map(({ user }) => user), sorted.map(({ id }) => id)]
  const rows = keys.length === 1
    ? await database.write(deleteOne, columns.flat())
    : await database.write(deleteMany, columns)
  return outcomesOf(keys, rows)
}

/** Rounds up by at most a quarter. So only 32 row counts occur, each with its own prepared statement. */
function roundUpRows (rows: number): number {
  const step = 2 ** Math.max(0, 29 - Math.clz32(rows - 1))
  return Math.ceil(rows / step) * step
}

/** If several requests of one batch concern the same plant, only the first request succeeds. */
function outcomesOf (keys: PlantKey[], rows: Row[]): boolean[] {
  if (rows.length === keys.length) return keys.map(() => true)
  const done = new Set(rows.map(([owner, id]) => `${id} ${owner}`))
  return keys.map(({ user, id }) => done.delete(`${id} ${user}`))
}
