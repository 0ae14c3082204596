import { batch } from '../database/batch.ts'
import type { Database, Row } from '../database/database.ts'
import { PlantSchema, type NewPlant, type Plant } from './schemas.ts'

export interface PlantsOptions {
  writeBatch: number
  maxWaiting: number
}

export type Plants = ReturnType<typeof createPlants>

/** What follows a part of a list. */
export interface Rest { from: string, limit: number }

/** JSON of plants, a comma before each. */
export interface Page { json: string, rest?: Rest }

interface PageRequest extends Rest { owner: string }
interface PlantKey { owner: string, id: string }
type OwnedPlant = PlantKey & Plant

// Most lists end within their beginning, which is read as rows. The rest is read
// in pages, so that what it takes of memory and of the database's time depends
// on neither its length nor its reader.
const [beginningSize, pageSize] = [100, 1000]
// However many lists are under way, a short one is not behind more pages than these.
const pagesAtOnce = 2
// Bytes of name and tag. A page with a larger plant is read again, to end with the plant that fills it.
const [largePlant, pageBytes] = [1024, 65_536]
const largestId = '9223372036854775807'

/** The plants in the database. Each verb acts for `owner` alone: other users' plants are neither seen nor touched. */
export function createPlants (database: Database, { writeBatch, maxWaiting }: PlantsOptions) {
  const options = { maxItems: writeBatch, maxWaiting }
  const insert = batch((plants: OwnedPlant[]) => insertAll(database, plants), ({ name, tag = '' }) => name.length + tag.length, options)
  const remove = batch((keys: PlantKey[]) => deleteAll(database, keys), () => 0, options)
  const readPage = batch((requests: PageRequest[]) => Promise.all(requests.map((request) => selectNext(database, request))),
    () => 0, { maxItems: pagesAtOnce, maxWaiting: Infinity })

  return {
    /** False when the owner already has a plant with this id, which stays as it is. */
    create: (owner: string, { id, name, tag }: NewPlant): Promise<boolean> => insert({ owner, id: id.toString(), name, tag }),

    /** False when the owner has no plant with this id. */
    delete: (owner: string, id: string): Promise<boolean> => remove({ owner, id }),

    /** The first plants in ascending order of id, `limit` at most. Without a rest these are all. */
    async list (owner: string, limit = Infinity): Promise<{ plants: Plant[], rest?: Rest }> {
      const size = Math.min(beginningSize, limit)
      const rows = await database.read(selectBeginning, [owner, size])
      const large = rows.findIndex(([, name]) => name === null)
      const plants = (large === -1 ? rows : rows.slice(0, large)).map(toPlant)
      if (large !== -1) return { plants, rest: { from: rows[large]?.[0] as string, limit: limit - large } }
      return { plants, rest: rows.length < size ? undefined : restAfter(rows.at(-1)?.[0], limit - size) }
    },

    /** Plants from an id on, some more of them, for a list that is being answered already. */
    listMore: (owner: string, rest: Rest): Promise<Page> => readPage({ owner, ...rest })
  }
}

/** Undefined when it is for sure empty. */
const restAfter = (last: string | null | undefined, limit: number): Rest | undefined =>
  last == null || last === largestId || limit === 0 ? undefined : { from: (BigInt(last) + 1n).toString(), limit }

const selectBeginning = {
  name: 'plants-beginning',
  text: `select id,
      case when octet_length(name) + coalesce(octet_length(tag), 0) <= ${largePlant} then name end,
      case when octet_length(tag) <= ${largePlant} then tag end
    from plants where owner = $1 order by id limit $2`
}

const toPlant = ([, name, tag]: Row): Plant => ({ name: name as string, tag: tag ?? undefined })

// PostgreSQL writes the JSON, of the properties of the schema in their order: a
// page is then one value to hand on, not a thousand objects to make and drop.
const properties = Object.keys(PlantSchema.properties).map((name, index) =>
  `coalesce('${index === 0 ? '' : ','}"${name}":' || to_json(${name})::text, '')`)
const json = `',{' || ${properties.join(' || ')} || '}'`
const plants = `select *, octet_length(name) + coalesce(octet_length(tag), 0) as bytes
        from plants where owner = $1 and id >= $2 order by id limit $3`
const selectPage = {
  name: 'plants-page',
  text: `select coalesce(string_agg(${json}, '' order by id) filter (where bytes <= ${largePlant}), ''), max(id), count(*), bool_or(bytes > ${largePlant})
    from (${plants}) as plant`
}
// Adding up the bytes takes a quarter more time. The plants may be gone meanwhile.
const selectPageOfLarge = {
  name: 'plants-page-of-large',
  text: `select coalesce(string_agg(${json}, '' order by id), ''), max(id), count(*) from (
      select *, sum(bytes) over (order by id rows unbounded preceding) - bytes as bytes_before from (${plants}) as plant
    ) as plant where bytes_before < ${pageBytes}`
}

async function selectNext (database: Database, { owner, from, limit }: PageRequest): Promise<Page> {
  const values = [owner, from, Math.min(pageSize, limit)]
  let [page] = await database.read(selectPage, values, { isUnderWay: true })
  if (page?.[3] === 't') [page] = await database.read(selectPageOfLarge, values, { isUnderWay: true })
  const [json, last, count] = page as [string, string | null, string]
  return { json, rest: restAfter(last, limit - Number(count)) }
}

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
