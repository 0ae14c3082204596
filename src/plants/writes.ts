// Creating and deleting plants, one or many in a statement.
import type { Database, Row, Statement } from '../database/database.ts'
import { columnList, fields, placeholdersOf } from './columns.ts'
import type { NewPlant } from './schemas.ts'

export interface PlantKey { owner: string, id: string }
export interface OwnedPlant extends PlantKey { plant: NewPlant }

/** The most plants that are created together. */
export const mostCreates = 512

// Deletes lock rows in the order of the primary key, and creates are inserted in
// one order, so none can deadlock with its kind, from whichever instance of the
// service. A delete sees no plant that is not committed, and waits for none.

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
// A bare ctid would be the outer row's: a join has no system columns of its own.
// Behind a select the arrays' lengths are hidden from the planner: for few rows
// it would plan each batch anew, which takes as long again as the batch itself.
const deleteMany = {
  name: 'plants-delete',
  text: `delete from plants where ctid = any (array(
      select plants.ctid from plants
      join unnest((select $1::text[]), (select $2::bigint[])) as key (owner, id) using (owner, id)
      order by plants.owner, plants.id for update of plants
    )) returning owner, id`
}

export async function insertAll (database: Database, plants: OwnedPlant[]): Promise<boolean[]> {
  const rows = plants.toSorted(byKey).filter(isFirstOfKey)
  const size = sizeFor(rows.length)
  // A row that comes again finds itself there.
  while (rows.length < size) rows.push(rows.at(-1) as OwnedPlant)
  const values = rows.flatMap(({ owner, id, plant }) => [owner, id, ...fields.map((field) => plant[field])])
  const insert = inserts[size] ??= insertOf(size)
  return areDone(plants, await database.write(insert, values))
}

export async function deleteAll (database: Database, keys: PlantKey[]): Promise<boolean[]> {
  const columns = [keys.map(({ owner }) => owner), keys.map(({ id }) => id)]
  const rows = keys.length === 1
    ? await database.write(deleteOne, columns.flat())
    : await database.write(deleteMany, columns)
  return areDone(keys, rows)
}

/** Each connection plans each number of rows: these are few, and a quarter more than needed at most. */
function sizeFor (rows: number): number {
  const step = 2 ** Math.max(0, 29 - Math.clz32(rows - 1))
  return Math.ceil(rows / step) * step
}

/** Among creates any one order of owners will do, if not that of their bytes. */
function byKey (one: OwnedPlant, other: OwnedPlant): number {
  if (one.owner !== other.owner) return one.owner < other.owner ? -1 : 1
  return Number(one.plant.id - other.plant.id)
}

const isFirstOfKey = (plant: OwnedPlant, index: number, sorted: OwnedPlant[]) =>
  index === 0 || byKey(plant, sorted[index - 1] as OwnedPlant) !== 0

/** Of requests for the same plant in one batch the first is carried out; the others find it done. */
function areDone (keys: PlantKey[], rows: Row[]): boolean[] {
  if (rows.length === keys.length) return keys.map(() => true)
  const done = new Set(rows.map(([owner, id]) => `${id} ${owner}`))
  return keys.map(({ owner, id }) => done.delete(`${id} ${owner}`))
}
