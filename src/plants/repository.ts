import { batch } from '../database/batch.ts'
import type { Database, Row } from '../database/database.ts'
import type { NewPlant, Plant } from './schemas.ts'

export interface PlantsOptions {
  writeBatch: number
  maxWaiting: number
}

export type Plants = ReturnType<typeof createPlants>

/** A part of a list. `next` asks for the part that follows; without it there is none. */
export interface Page {
  plants: Plant[]
  next?: PageRequest
}

interface PageRequest { from?: string, limit?: number }
interface PlantKey { owner: string, id: string }
type OwnedPlant = PlantKey & Plant

// A list is read in pages, so that what it takes of memory and of the
// database's time depends on neither its length nor its reader.
const pageSize = 1000
// Bytes. Plants beyond are left out of pages and read one at a time: there is
// a bound on a page's size, too.
const largePlant = 4096
const [smallestId, largestId] = ['-9223372036854775808', '9223372036854775807']

/** The plants in the database. Each verb acts for `owner` alone: other users' plants are neither seen nor touched. */
export function createPlants (database: Database, { writeBatch, maxWaiting }: PlantsOptions) {
  const options = { maxItems: writeBatch, maxWaiting }
  const insert = batch((plants: OwnedPlant[]) => insertAll(database, plants), ({ name, tag = '' }) => name.length + tag.length, options)
  const remove = batch((keys: PlantKey[]) => deleteAll(database, keys), () => 0, options)

  return {
    /** False when the owner already has a plant with this id, which stays as it is. */
    create: (owner: string, { id, name, tag }: NewPlant): Promise<boolean> => insert({ owner, id: id.toString(), name, tag }),

    /** False when the owner has no plant with this id. */
    delete: (owner: string, id: string): Promise<boolean> => remove({ owner, id }),

    /** Plants in ascending order of id; from the first, and all of them, unless told otherwise. */
    async list (owner: string, { from, limit = Infinity }: PageRequest = {}): Promise<Page> {
      const size = Math.min(pageSize, limit)
      const rows = await database.read(selectPage, [owner, from ?? smallestId, size], { isUnderWay: from !== undefined })
      const large = rows.findIndex(([, name]) => name === null)
      const page = large === -1 ? rows : rows.slice(0, large || 1)
      const plants = (large === 0 ? await database.read(selectOne, [owner, page[0]?.[0]], { isUnderWay: true }) : page).map(toPlant)
      const last = page.at(-1)?.[0]
      const left = limit - plants.length
      if (last == null || last === largestId || left === 0 || (rows.length < size && page.length === rows.length)) return { plants }
      return { plants, next: { from: (BigInt(last) + 1n).toString(), limit: left } }
    }
  }
}

const selectPage = {
  name: 'plants-page',
  text: `select id,
      case when octet_length(name) + coalesce(octet_length(tag), 0) <= ${largePlant} then name end,
      case when octet_length(tag) <= ${largePlant} then tag end
    from plants where owner = $1 and id >= $2 order by id limit $3`
}
const selectOne = {
  name: 'plant-one',
  text: 'select id, name, tag from plants where owner = $1 and id = $2'
}

const toPlant = ([, name, tag]: Row): Plant => ({ name: name as string, tag: tag ?? undefined })

// Both writes lock rows in the order of the primary key, and so can't deadlock
// with each other, from whichever instance of the service.
const insertOne = {
  name: 'plant-insert',
  text: 'insert into plants (owner, id, name, tag) values ($1, $2, $3, $4) on conflict do nothing returning owner, id'
}
const insertMany = {
  name: 'plants-insert',
  text: `insert into plants (owner, id, name, tag)
    select * from unnest($1::text[], $2::bigint[], $3::text[], $4::text[]) as plant (owner, id, name, tag)
    order by owner collate "C", id
    on conflict do nothing returning owner, id`
}
const deleteOne = {
  name: 'plant-delete',
  text: 'delete from plants where owner = $1 and id = $2 returning owner, id'
}
// A bare ctid would be the outer row's: a join has no system columns of its own.
const deleteMany = {
  name: 'plants-delete',
  text: `delete from plants where ctid = any (array(
      select plants.ctid from plants join unnest($1::text[], $2::bigint[]) as key (owner, id) using (owner, id)
      order by plants.owner, plants.id for update of plants
    )) returning owner, id`
}

async function insertAll (database: Database, plants: OwnedPlant[]): Promise<boolean[]> {
  const firsts = firstByKey(plants)
  const values = [...firsts.values()]
  const rows = values.length === 1
    ? await database.write(insertOne, values.flatMap(({ owner, id, name, tag }) => [owner, id, name, tag]))
    : await database.write(insertMany, columnsOf(values, ['owner', 'id', 'name', 'tag']))
  return plants.map(isFirstOf(firsts, rows))
}

async function deleteAll (database: Database, keys: PlantKey[]): Promise<boolean[]> {
  const firsts = firstByKey(keys)
  const values = [...firsts.values()]
  const rows = values.length === 1
    ? await database.write(deleteOne, values.flatMap(({ owner, id }) => [owner, id]))
    : await database.write(deleteMany, columnsOf(values, ['owner', 'id']))
  return keys.map(isFirstOf(firsts, rows))
}

const columnsOf = <Item>(items: Item[], columns: Array<keyof Item>) => columns.map((column) => items.map((item) => item[column]))

const keyOf = ({ owner, id }: PlantKey) => `${id} ${owner}`

/** Of requests for the same plant in one batch the first is carried out; the others find it done. */
function firstByKey<Key extends PlantKey> (keys: Key[]): Map<string, Key> {
  const firsts = new Map<string, Key>()
  for (const key of keys) if (!firsts.has(keyOf(key))) firsts.set(keyOf(key), key)
  return firsts
}

/** Whether a request is the one that brought about one of the rows. */
function isFirstOf (firsts: Map<string, PlantKey>, rows: Row[]): (key: PlantKey) => boolean {
  const done = new Set(rows.map(([owner, id]) => firsts.get(keyOf({ owner, id } as PlantKey))))
  return (key) => done.has(key)
}
