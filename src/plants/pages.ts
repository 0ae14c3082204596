// Statements that read pages of plants.
import type { Database, Row } from '../database/database.ts'
import { inlineBytes } from '../scheduling/memory-budget.ts'
import { columnList, fields, textFields, toPlant, type Plant } from './plant.ts'

/** The rest of a list: at most `limit` plants, with ids from `from` up to and including `to`. */
export interface Cursor { from: string, limit: number, to?: string }

export interface PageRequest extends Cursor {
  user: string
  maxPlants: number
  /** The most bytes of JSON for a page's texts. A plant with more gets a page of its own. */
  maxBytes: number
}

/** Plants in ascending order of id. */
export interface Page {
  count: number
  bytes: number
  /** How long the server took to read the page. 0 for a page with large texts. */
  seconds: number
  /** Absent on the last page. */
  next?: Cursor
  /** On the last page: the id of the first plant beyond the limit. */
  beyond?: string
  /** Parses and releases the JSON, so call `toPlants` only once. Parsing a large page is expensive. */
  toPlants (): Plant[]
}

export const firstId = '-9223372036854775808'
const lastId = '9223372036854775807'

const textBytes = textFields.map((field) => `coalesce(octet_length(${field}), 0)`)
const jsonBytes = textFields.map((field) => `coalesce(octet_length(to_json(${field})::text), 0)`)

// Selects a page as one row: the count, the last id if the page is full, the seconds since the statement
// began, and a JSON array per field. If the arrays exceed `maxBytes` or a text exceeds 256 bytes, all arrays
// are null: `selectLargePage` reads such pages. See docs/design/004-lists-in-pages.md.
const pageOf = (condition: string, size: string, maxBytes: string | number) => `
  select count, case when count = ${size} then last_id end as last_id,
    date_part('epoch', clock_timestamp() - statement_timestamp()) as ended_at,
    ${fields.map((field) => `case when not has_large
      and ${fields.map((each) => `octet_length(${each})`).join(' + ')} <= ${maxBytes} then ${field} end`)}
  from (
    select count(*) as count, max(id) as last_id, bool_or(is_large) as has_large
      ${fields.map((field) => `,
        json_agg(case when not is_large then ${field} end order by id)::text as ${field}`).join('')}
    from (
      select id${columnList}, greatest(${textBytes.join()}) > 256 as is_large
      from plants where ${condition} order by id limit ${size}
    ) as plant
  ) as page`

const selectPage = { name: 'plants-page', text: pageOf('owner = $1 and id between $2 and $5', '$3', '$4') }

// Without the subselects, the planner would see the arrays' lengths, and PostgreSQL would replan most calls.
const selectPages = {
  name: 'plants-pages',
  text: `select n, page.* from unnest((select $1::text[]), (select $2::bigint[]), (select $3::bigint[]))
      with ordinality as list (owner, first, size, n)
    cross join lateral (
      ${pageOf('owner = list.owner and id >= list.first', 'list.size', inlineBytes)}
    ) as page`
}

// Ends the page before the plant that would bring the page's JSON over $4 bytes. The condition on
// `bytes_before` needs only stored lengths. So PostgreSQL reads no large texts of plants after the page.
const selectLargePage = {
  name: 'plants-large-page',
  text: `with plant as (
      select id${columnList}, ${textBytes.join(' + ')} as bytes
      from plants where owner = $1 and id between $2 and $5 order by id limit $3
    ), stored as (
      select *, sum(bytes) over (order by id) - bytes as bytes_before from plant
    ), written as (
      select *, sum(${jsonBytes.join(' + ')}) over (order by id) as json_bytes,
        row_number() over (order by id) as n
      from stored where bytes_before < $4::bigint
    )
    select count(*), case when count(*) = $3 or count(*) < (select count(*) from plant) then max(id) end, 0
      ${fields.map((field) => `, json_agg(${field} order by id)`).join('')}
    from written where json_bytes <= $4::bigint or n = 1`
}

// For this statement, PostgreSQL reads only index entries.
const selectEnd = {
  name: 'plants-end',
  text: 'select id from plants where owner = $1 and id >= $2 order by id offset $3 limit 1'
}

const valuesOf = ({ user, from, maxPlants, maxBytes, to = lastId }: PageRequest) =>
  [user, from, maxPlants, maxBytes, to]

/** Runs one statement. Returns undefined for a page that is too large: read such a page with `readPage`. */
export async function readFirstPages (database: Database, lists: PageRequest[]) {
  if (lists.length === 1) return [await readSmallPage(database.read, lists[0] as PageRequest)]
  const columns = (['user', 'from', 'maxPlants'] as const).map((name) => lists.map((list) => list[name]))
  const pages: Array<Page | undefined> = []
  let beganAt = 0
  for (const [n, ...row] of await database.read(selectPages, columns)) {
    pages[Number(n) - 1] = toPage(lists[Number(n) - 1] as PageRequest, row, beganAt)
    // The server reads one page after the other, so a page begins when the previous page ends.
    beganAt = Number(row[2])
  }
  return pages
}

/** Reads the first page of one list. Returns undefined for a page of more than `maxBytes`. */
export async function readSmallPage (read: Database['read'], list: PageRequest): Promise<Page | undefined> {
  const [row] = await read(selectPage, valuesOf(list))
  return toPage(list, row as Row)
}

export async function readPage (database: Database, request: PageRequest): Promise<Page> {
  const page = await readSmallPage(database.readLong, request)
  if (page !== undefined) return page
  const [large] = await database.readLong(selectLargePage, valuesOf(request))
  return toPage(request, large as Row) as Page
}

/** Returns the id of the first plant beyond the limit, or undefined if there is none. */
export async function readEnd (database: Database, { user, from, limit }: PageRequest) {
  const [row] = await database.readLong(selectEnd, [user, from, limit])
  return row?.[0] as string | undefined
}

/** Returns undefined if the page has plants but no arrays: the page was too large for the statement. */
function toPage (
  { limit, to }: PageRequest, [count, last, endedAt, ...columns]: Row, beganAt = 0
): Page | undefined {
  if (count !== '0' && columns[0] == null) return undefined
  const hasMore = Number(count) > limit
  const plants = hasMore ? limit : Number(count)
  let texts = columns as string[]
  const isEnd = hasMore || last == null || last === lastId
  return {
    count: plants,
    seconds: Number(endedAt) - beganAt,
    bytes: texts.reduce((sum, json) => sum + (json?.length ?? 0), 0),
    next: isEnd ? undefined : { from: (BigInt(last) + 1n).toString(), limit: limit - plants, to },
    beyond: hasMore ? last as string : undefined,
    toPlants: () => {
      const values = texts.map((json) => JSON.parse(json) as unknown[])
      texts = []
      return values[0]?.slice(0, plants).map((_, position) => toPlant(values, position)) ?? []
    }
  }
}
