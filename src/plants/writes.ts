// Statements that create and delete plants, one or many at a time.
import type { Database, Row, Statement } from '../database/database.ts'
import { columnList, fields, placeholdersOf } from './columns.ts'
import type { Plant } from './schemas.ts'

export interface PlantKey { user: string, id: string }
export interface PlantToStore extends PlantKey { plant: Plant }

/** The most plants in one statement. */
export const maxWrites = 512

// Use a `values` list: Citus can route each of its rows to a node, but cannot route the rows of `unnest`.
const inserts: Statement[] = []
const insertOf = (rows: number): Statement => ({
  name: rows === 1 ? 'plant-insert' : 'plants-insert',
  preparedAs: `plants-insert-${rows}`,
  text: `insert into plants (owner, id${columnList}) values ${placeholdersOf(rows)}
    on conflict do nothing returning owner, id`
})
const deleteOne = {
  name: 'plant-delete',
  text: 'delete from plants where owner = $1 and id = $2 returning owner, id'
}
// The subselects hide the arrays' lengths from the planner. Otherwise PostgreSQL would replan, which almost
// doubles a small batch's time. Because of `limit`, the planner expects one key and uses the index. Without
// `limit`, a batch would read the whole table if the table was small when the statement was prepared.
const deleteMany = {
  name: 'plants-delete',
  text: `delete from plants
    using (
      select * from unnest((select $1::text[]), (select $2::bigint[])) limit (select $3::bigint)
    ) as key (owner, id)
    where plants.owner = key.owner and plants.id = key.id returning plants.owner, plants.id`
}

export async function insertAll (database: Database, plants: PlantToStore[]): Promise<boolean[]> {
  const rows = plants.toSorted(byKey).filter(isFirstOfKey)
  const size = roundUpRows(rows.length)
  // Fill up with copies of the last row: `on conflict do nothing` skips the copies.
  while (rows.length < size) rows.push(rows.at(-1) as PlantToStore)
  const values = rows.flatMap(({ user, id, plant }) => [user, id, ...fields.map((field) => plant[field])])
  const insert = inserts[size] ??= insertOf(size)
  return outcomesOf(plants, await database.write(insert, values))
}

export async function deleteAll (database: Database, keys: PlantKey[]): Promise<boolean[]> {
  const sorted = keys.toSorted(byKey)
  const columns = [sorted.map(({ user }) => user), sorted.map(({ id }) => id)]
  const rows = keys.length === 1
    ? await database.write(deleteOne, columns.flat())
    : await database.write(deleteMany, [...columns, keys.length])
  return outcomesOf(keys, rows)
}

/** Rounds up by at most a quarter. So only 32 row counts occur, each with its own prepared statement. */
function roundUpRows (rows: number): number {
  const step = 2 ** Math.max(0, 29 - Math.clz32(rows - 1))
  return Math.ceil(rows / step) * step
}

/** Instances, `import` and `user erase` lock plants in this order, so that statements rarely deadlock. */
export function byKey (one: PlantKey, other: PlantKey): number {
  if (one.user !== other.user) return one.user < other.user ? -1 : 1
  if (one.id === other.id) return 0
  // Beyond 2^53, different ids may be the same number.
  return Number(one.id) - Number(other.id) || (one.id < other.id ? -1 : 1)
}

const isFirstOfKey = (key: PlantKey, index: number, sorted: PlantKey[]) =>
  index === 0 || byKey(key, sorted[index - 1] as PlantKey) !== 0

/** If several requests of one batch concern the same plant, only the first request succeeds. */
function outcomesOf (keys: PlantKey[], rows: Row[]): boolean[] {
  if (rows.length === keys.length) return keys.map(() => true)
  const done = new Set(rows.map(([owner, id]) => `${id} ${owner}`))
  return keys.map(({ user, id }) => done.delete(`${id} ${user}`))
}
