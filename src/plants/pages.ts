// Reading plants: a list is one page or several.
import type { Database, ReadOptions, Row } from '../database/database.ts'
import { columnList, fields, texts, toPlant } from './columns.ts'
import type { Plant } from './schemas.ts'

/** What follows a page. */
export interface Rest { from: string, limit: number }

/** Plants in ascending order of id. Without a rest these are the last. */
export interface Page {
  plants: Plant[]
  rest?: Rest | undefined
  /** Of its texts as they were read. */
  bytes: number
}

export interface PageRequest extends Rest, Pick<ReadOptions, 'answer' | 'since'> {
  owner: string
  /** The most plants of the page. */
  size: number
}

// Most lists are one page. Longer ones are read page by page, so that what they
// take of memory and of the database's time depends on neither their length nor
// their reader; and one page at a time for all of them, on a connection that
// short lists don't need.
/** The first page of a list has so many plants at most, and each that a slow reader gets. */
export const smallestPage = 500
// Bytes of a name or a tag. A page with a larger one is read again, to end with the plant that fills it.
const [largeText, pageBytes] = [512, 65_536]
const [smallestId, largestId] = ['-9223372036854775808', '9223372036854775807']

// A page is one row of JSON arrays, one for each field. Reading 20 plants so
// costs the service a sixth less than as 20 rows, and PostgreSQL 8 µs more; of
// 100,000 it takes a third of the time off. Objects written as JSON by
// PostgreSQL would cost it twice as much.
const bytes = texts.map((field) => `coalesce(octet_length(${field}), 0)`)
const inOrder = (condition: string, size: string) =>
  `select id${columnList}, greatest(${bytes.join()}) > ${largeText} as is_large
      from plants where ${condition} order by id limit ${size}`
const asArrays = (plants: string) =>
  `select max(id), bool_or(is_large)${fields.map((field) => `, case when not bool_or(is_large) then
      json_agg(case when not is_large then ${field} end order by id) end`).join('')}
    from (${plants}) as plant`
const page = inOrder('owner = $1 and id >= $2', '$3')
const selectPlants = { name: 'plants-page', text: asArrays(page) }
// Without the selects around the parameters their lengths would be known to the
// planner, which would plan most numbers of lists anew each time.
const selectFirstPlants = {
  name: 'plants-first-pages',
  text: `select n, page.*
    from unnest((select $1::text[]), (select $2::bigint[])) with ordinality as list (owner, size, n)
    cross join lateral (${asArrays(inOrder('owner = list.owner', 'list.size'))}) as page`
}
// Tells whether others of the page were left.
const selectLargePlants = {
  name: 'plants-page-of-large',
  text: `select max(id), count(*) < max(plants)${fields.map((field) => `,
      json_agg(${field} order by id)`).join('')} from (
      select *, count(*) over () as plants, sum(${bytes.join(' + ')})
        over (order by id rows between unbounded preceding and 1 preceding) as bytes_before
      from (${page}) as plant
    ) as plant where coalesce(bytes_before, 0) < ${pageBytes}`
}

/** For the first page of a list. */
export const firstPage = (owner: string, limit: number, answer?: PageRequest['answer']): PageRequest =>
  ({ owner, from: smallestId, limit, size: smallestPage, answer, since: performance.now() })

const sizeOf = ({ limit, size }: PageRequest) => Math.min(size, limit)
const valuesOf = (request: PageRequest) => [request.owner, request.from, sizeOf(request)]

/** A page after the first, of a list that is being answered already. */
export async function selectNextPage (database: Database, request: PageRequest): Promise<Page> {
  const { owner, answer } = request
  const underWay = { owner, answer, isLong: true, exemptFromRejection: true }
  const [row] = await database.read(selectPlants, valuesOf(request), underWay)
  return toPage(database, request, row as Row, true)
}

/**
 * The first pages of several lists, by one statement. Each row tells the place
 * of its list among them: the order of the rows is PostgreSQL's affair. A page
 * with large texts is still to come then, and the other lists don't wait for it.
 */
export async function selectFirstPages (
  database: Database, lists: PageRequest[]
): Promise<Array<Promise<Page>>> {
  const [first] = lists as [PageRequest]
  const rows = lists.length === 1
    ? (await database.read(selectPlants, valuesOf(first), { owner: first.owner })).map((row) => ['1', ...row])
    : await database.read(selectFirstPlants, [lists.map(({ owner }) => owner), lists.map(sizeOf)])
  const pages = new Map(rows.map(([n, ...row]) => [Number(n), row]))
  return lists.map((list, index) => toPage(database, list, pages.get(index + 1) as Row, false))
}

async function toPage (
  database: Database, request: PageRequest, row: Row, exemptFromRejection: boolean
): Promise<Page> {
  const { owner, limit, answer, since } = request
  const hasLarge = row[1] === 't'
  const asLong = { owner, answer, since, isLong: true, exemptFromRejection }
  const [read] = hasLarge
    ? await database.read(selectLargePlants, valuesOf(request), asLong)
    : [row]
  const [last, isCut, ...columns] = read as Row
  const plants = toPlants(columns)
  const isWhole = plants.length < sizeOf(request) && isCut !== 't'
  const bytes = columns.reduce((sum, json) => sum + (json?.length ?? 0), 0)
  return { plants, bytes, rest: isWhole ? undefined : restAfter(last, limit - plants.length) }
}

/** From the columns of plants, each a JSON array, or null when there are none. */
function toPlants (columns: Row): Plant[] {
  const values = columns.map((json): unknown[] => json == null ? [] : JSON.parse(json))
  return (values[0] as unknown[]).map((_, row) => toPlant(values, row))
}

/** Undefined when it is for sure empty. */
function restAfter (last: string | null | undefined, limit: number): Rest | undefined {
  if (last == null || last === largestId || limit === 0) return undefined
  return { from: (BigInt(last) + 1n).toString(), limit }
}
