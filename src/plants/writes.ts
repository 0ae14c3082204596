// Creating and deleting plants, one or many in a statement.
import type { Database, Row, Statement } from '../database/database.ts'
import { columnList, fields, placeholdersOf } from './columns.ts'
import type { NewPlant } from './schemas.ts'

export interface PlantKey { owner: string, id: string }
export interface OwnedPlant extends PlantKey { plant: NewPlant }

/** The most plants that are created together. */
export const mostCreates = 512

// All instances ask for plants in one order, so that batches don't deadlock. Where the planner takes
// another, reading a small table as a whole, PostgreSQL may end one: it is tried again plant by plant.
// A delete sees no plant that is not committed, and waits for none.

// Values, since a server that spreads plants by owner can tell from them which
// go where. Up to 100 plants they cost no more than arrays, and mostly less.
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
// Behind a select the arrays' lengths are hidden from the planner: for few rows
// it would plan each batch anew, which takes as long again as the batch itself.
const deleteMany = {
  name: 'plants-delete',
  text: `delete from plants
    using unnest((select $1::text[]), (select $2::bigint[])) as key (owner, id)
    where plants.owner = key.owner and plants.id = key.id returning plants.owner, plants.id`
}

export async function insertAll (database: Database, plants: OwnedPlant[]): Promise<boolean[]> {
  const rows = plants.toSorted(byKey).filter(isFirstOfKey)
  const size = roundUpRows(rows.length)
  // A row that comes again finds itself there.
  while (rows.length < size) rows.push(rows.at(-1) as OwnedPlant)
  const values = rows.flatMap(({ owner, id, plant }) => [owner, id, ...fields.map((field) => plant[field])])
  const insert = inserts[size] ??= insertOf(size)
  return outcomesOf(plants, await database.write(insert, values))
}

export async function deleteAll (database: Database, keys: PlantKey[]): Promise<boolean[]> {
  const sorted = keys.toSorted(byKey)
  const columns = [sorted.map(({ owner }) => owner), sorted.map(({ id }) => id)]
  const rows = keys.length === 1
    ? await database.write(deleteOne, columns.flat())
    : await database.write(deleteMany, columns)
  return outcomesOf(keys, rows)
}

/** Each connection plans each number of rows: these are few, and a quarter more than needed at most. */
function roundUpRows (rows: number): number {
  const step = 2 ** Math.max(0, 29 - Math.clz32(rows - 1))
  return Math.ceil(rows / step) * step
}

/** Any one order will do, if not that of the index. */
function byKey (one: PlantKey, other: PlantKey): number {
  if (one.owner !== other.owner) return one.owner < other.owner ? -1 : 1
  if (one.id === other.id) return 0
  return one.id < other.id ? -1 : 1
}

const isFirstOfKey = (key: PlantKey, index: number, sorted: PlantKey[]) =>
  index === 0 || byKey(key, sorted[index - 1] as PlantKey) !== 0

/** Of requests for the same plant in one batch the first is carried out; the others find it done. */
function outcomesOf (keys: PlantKey[], rows: Row[]): boolean[] {
  if (rows.length === keys.length) return keys.map(() => true)
  const done = new Set(rows.map(([owner, id]) => `${id} ${owner}`))
  return keys.map(({ owner, id }) => done.delete(`${id} ${owner}`))
}
