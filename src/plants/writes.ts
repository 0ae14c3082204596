// Creating and deleting plants, one or many in a statement.
import type { Database, Row } from '../database/database.ts'
import { arrayPlaceholders, columnList, fields, placeholders } from './columns.ts'
import type { Plant } from './schemas.ts'

export interface PlantKey { owner: string, id: string }
export interface OwnedPlant extends PlantKey { plant: Plant }

// Both writes lock rows in the order of the primary key, and so can't deadlock
// with each other, from whichever instance of the service.
const insertOne = {
  name: 'plant-insert',
  text: `insert into plants (owner, id${columnList}) values ($1, $2${placeholders})
    on conflict do nothing returning owner, id`
}
const insertMany = {
  name: 'plants-insert',
  text: `insert into plants (owner, id${columnList})
    select owner, id${columnList} from unnest($1::text[], $2::bigint[]${arrayPlaceholders})
      with ordinality as plant (owner, id${columnList}, n)
    order by owner collate "C", id, n
    on conflict do nothing returning owner, id`
}
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
  const columns = [...keyColumns(plants), ...fields.map((field) => plants.map(({ plant }) => plant[field]))]
  const rows = plants.length === 1
    ? await database.write(insertOne, columns.flat())
    : await database.write(insertMany, columns)
  return areDone(plants, rows)
}

export async function deleteAll (database: Database, keys: PlantKey[]): Promise<boolean[]> {
  const columns = keyColumns(keys)
  const rows = keys.length === 1
    ? await database.write(deleteOne, columns.flat())
    : await database.write(deleteMany, columns)
  return areDone(keys, rows)
}

const keyColumns = (keys: PlantKey[]) => [keys.map(({ owner }) => owner), keys.map(({ id }) => id)]

/** Of requests for the same plant in one batch the first is carried out; the others find it done. */
function areDone (keys: PlantKey[], rows: Row[]): boolean[] {
  if (rows.length === keys.length) return keys.map(() => true)
  const done = new Set(rows.map(([owner, id]) => `${id} ${owner}`))
  return keys.map(({ owner, id }) => done.delete(`${id} ${owner}`))
}
