// Reads pages of rows in ascending order of id.
import type { Database, Row as ResultRow } from '../database/database.ts'
import type { Statements } from './statements.ts'
import type { Table } from './table.ts'

/** The rest of a list: at most `limit` rows, with ids from `from` up to and including `to`. */
export interface Cursor { from: string, limit: number, to?: string }

export interface PageRequest extends Cursor {
  user: string
  maxRows: number
  /** The most bytes of JSON for a page's texts. A row with more gets a page of its own. */
  maxBytes: number
}

export interface Page<Row> {
  count: number
  bytes: number
  /** Whether the server took long to read the page, or needed a second statement. */
  isCostly: boolean
  /** Absent on the last page. */
  next?: Cursor
  /** On the last page: the id of the first row after the limit. */
  nextId?: string
  /** Parses and releases the JSON, so call `toRows` only once. Parsing a large page is expensive. */
  toRows (): Row[]
}

/** The server reads a page of 100 rows from its memory in about 0.1 ms. */
const slowSeconds = 0.01

export const firstId = '-9223372036854775808'
const lastId = '9223372036854775807'

const valuesOf = ({ user, from, maxRows, maxBytes, to = lastId }: PageRequest) =>
  [user, from, maxRows, maxBytes, to]

export function createPageReader<Row> (
  database: Database, { fields }: Table, statements: Statements
) {
  /** Runs one statement. Returns undefined for a page that `readPage` must read. */
  async function readFirstPages (lists: PageRequest[]): Promise<Array<Page<Row> | undefined>> {
    if (lists.length === 1) return [await readSmallPage(database.read, lists[0] as PageRequest)]
    const columns = (['user', 'from', 'maxRows'] as const).map((name) => lists.map((list) => list[name]))
    const pages: Array<Page<Row> | undefined> = []
    let before = 0
    const rows = await database.read(statements.pages, columns)
    if (rows.length > lists.length) {
      // A session from before `create extension citus` returns an empty page of each shard without the list.
      database.noticeCitus()
      return []
    }
    for (const row of rows) {
      const index = Number(row[0]) - 1
      pages[index] = toPage(lists[index] as PageRequest, row.slice(1), before)
      // The server reads one page after the other, so a page begins when the previous page ends.
      before = Number(row[3])
    }
    return pages
  }

  /** Reads the first page of one list. Returns undefined for a page of more than `maxBytes`. */
  async function readSmallPage (read: Database['read'], list: PageRequest): Promise<Page<Row> | undefined> {
    const [row] = await read(statements.page, valuesOf(list))
    return toPage(list, row as ResultRow)
  }

  async function readPage (request: PageRequest): Promise<Page<Row>> {
    const page = await readSmallPage(database.readLong, request)
    if (page !== undefined) return page
    const [large] = await database.readLong(statements.largePage, valuesOf(request))
    return { ...toPage(request, large as ResultRow) as Page<Row>, isCostly: true }
  }

  /** Returns the id of the first row after `limit` rows, or undefined if there is none. */
  async function readEnd ({ user, from, limit }: PageRequest): Promise<string | undefined> {
    const [row] = await database.readLong(statements.end, [user, from, limit])
    return row?.[0] as string | undefined
  }

  /** Returns undefined if the page has rows but no arrays: the page was too large for the statement. */
  function toPage (
    { limit, to }: PageRequest, [total, last, seconds, ...columns]: ResultRow, before = 0
  ): Page<Row> | undefined {
    if (total !== '0' && columns[0] == null) return undefined
    const hasMore = Number(total) > limit
    const count = hasMore ? limit : Number(total)
    let arrays = columns as string[]
    const isEnd = hasMore || last == null || last === lastId
    return {
      count,
      isCostly: Number(seconds) - before > slowSeconds,
      bytes: arrays.reduce((sum, json) => sum + (json?.length ?? 0), 0),
      next: isEnd ? undefined : { from: (BigInt(last) + 1n).toString(), limit: limit - count, to },
      nextId: hasMore ? last as string : undefined,
      toRows () {
        const values = arrays.map((json) => JSON.parse(json) as unknown[] | null)
        arrays = []
        return toRows(fields, values, count) as Row[]
      }
    }
  }

  return { readFirstPages, readPage, readEnd }
}

/** Sets one field of all rows after the other, because this takes a third of the time of row after row. */
function toRows (
  fields: string[], columns: Array<unknown[] | null>, count: number
): Array<Record<string, unknown>> {
  const rows: Array<Record<string, unknown>> = []
  while (rows.length < count) rows.push({})
  for (const [index, field] of fields.entries()) {
    rows.forEach((row, position) => { row[field] = columns[index]?.[position] ?? undefined })
  }
  return rows
}
