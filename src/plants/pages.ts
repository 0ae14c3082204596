// Reading plants: a list is one page or several.
import type { Database, Row, Statement } from '../database/database.ts'
import { columnList, fields, texts, toPlant } from './columns.ts'
import type { Plant } from './schemas.ts'

/** What follows a page. */
export interface Rest { from: string, limit: number }

/** Plants in ascending order of id. Without a rest these are the last. */
export interface Page { plants: Plant[], rest?: Rest }

export interface PageRequest extends Rest { owner: string }
// Most lists are one page. Longer ones are read page by page, so that what they
// take of memory and of the database's time depends on neither their length nor
// their reader; and one page at a time for all of them, on a connection that
// short lists don't need. Pages of 1,000 take a quarter less time, and 50 slow
// readers then half as much memory again.
const pageSize = 500
// Bytes of a name or a tag. A page with a larger one is read again, to end with the plant that fills it.
const [largeText, pageBytes] = [512, 65_536]
export const [smallestId, largestId] = ['-9223372036854775808', '9223372036854775807']

// A page is one row of JSON arrays, one for each field. Reading 20 plants so
// costs the service a sixth less than as 20 rows, and PostgreSQL 8 µs more; of
// 100,000 it takes a third of the time off. Objects written as JSON by
// PostgreSQL would cost it twice as much.
const bytes = texts.map((field) => `coalesce(octet_length(${field}), 0)`)
const inOrder = `select id${columnList}, greatest(${bytes.join()}) > ${largeText} as is_large
      from plants where owner = $1 and id >= $2 order by id limit $3`
const selectPlants = {
  name: 'plants-page',
  text: `select max(id), bool_or(is_large)${fields.map((field) => `,
      json_agg(case when not is_large then ${field} end order by id)`).join('')}
    from (${inOrder}) as plant`
}
const selectLargePlants = {
  name: 'plants-page-of-large',
  text: `select max(id), false${fields.map((field) => `, json_agg(${field} order by id)`).join('')} from (
      select *, sum(${bytes.join(' + ')}) over (order by id rows between unbounded preceding and 1 preceding) as bytes_before
      from (${inOrder}) as plant
    ) as plant where coalesce(bytes_before, 0) < ${pageBytes}`
}

export async function selectPage (database: Database, { owner, from, limit }: PageRequest, isUnderWay: boolean): Promise<Page> {
  const size = Math.min(pageSize, limit)
  const select = async (statement: Statement, isLong: boolean) => {
    const [[last, hasLarge, ...columns] = []] = await database.read(statement, [owner, from, size], { owner, isLong, isUnderWay })
    return { last, hasLarge, columns }
  }
  let page = await select(selectPlants, isUnderWay)
  const isCut = page.hasLarge === 't'
  if (isCut) page = await select(selectLargePlants, true)
  const plants = toPlants(page.columns)
  return { plants, rest: plants.length === size || isCut ? restAfter(page.last, limit - plants.length) : undefined }
}

/** From the columns of plants, each a JSON array, or null when there are none. */
function toPlants (columns: Row): Plant[] {
  const values = columns.map((json): unknown[] => json == null ? [] : JSON.parse(json))
  return (values[0] ?? []).map((_, row) => toPlant(values, row))
}

/** Undefined when it is for sure empty. */
const restAfter = (last: string | null | undefined, limit: number): Rest | undefined =>
  last == null || last === largestId || limit === 0 ? undefined : { from: (BigInt(last) + 1n).toString(), limit }
