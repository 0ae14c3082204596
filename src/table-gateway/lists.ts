// Reads lists. Short lists share a statement. Long lists are read page by page, and their users take turns.
import type { Writable } from 'node:stream'
import { LRUCache } from 'lru-cache'
import { maxInFlight, type Database } from '../database/database.ts'
import { wasRolledBack } from '../database/pg-errors.ts'
import { overloaded } from '../errors.ts'
import { Batcher, type BatcherOptions, type Identity, type Work } from '../scheduling/batcher.ts'
import { inlineBytes, type MemoryBudget } from '../scheduling/memory-budget.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import { createPageReader, firstId, type Cursor, type Page, type PageRequest } from './pages.ts'
import type { Statements } from './statements.ts'
import type { Table } from './table.ts'

export interface List<Row> {
  /** The rows of a short list, or the pages of a long list. */
  rows: Row[] | AsyncGenerator<Page<Row>, void>
  /** The id of the first row after the limit. Undefined if the list is complete. */
  nextId: string | undefined
}

type ListRequest = PageRequest & Work

/** A first page has at most 100 rows, and one more row that shows whether the list goes on. */
const [maxPageRows, maxFirstPageRows] = [2000, 101]
/** Parsing 128 KiB of JSON takes about 2 ms. */
const [maxPageBytes, maxFirstPageBytes] = [131_072, 65_536]
/** A long list holds the page that is being sent, and the prefetched next page. */
const longListBytes = 2 * maxPageBytes

export function createLists<Row> (
  database: Database, table: Table, statements: Statements, budget: MemoryBudget,
  shortOptions: Pick<BatcherOptions<ListRequest, unknown>, 'maxItems' | 'maxQueued' | 'isOneByOne'>
) {
  const pages = createPageReader<Row>(database, table, statements)
  /** Users with a slow first page, or with one too large for a short list, in the last 10 s. */
  const usersOfLongLists = new LRUCache<string, true>({ max: 10_000, ttl: 10_000 })

  const shortLists = new Batcher(readShort,
    { ...shortOptions, name: `${table.name}_list`, maxInFlight: maxInFlight.shortLists })
  const longLists = new Batcher(async ([item]: Array<Work & { read: () => Promise<unknown> }>) =>
    [await item?.read()], {
    name: `${table.name}_page`,
    maxItems: 1,
    maxInFlight: maxInFlight.pages,
    isOnePerUser: true,
    // The memory budget limits the long lists, and each of them queues one statement at a time.
    maxQueued: Infinity
  })

  /** Reads a part of a long list. Long lists of different users take turns. */
  const readAlone = <Result>(
    { identity, user, response }: ListRequest, neverExpires: boolean, read: () => Promise<Result>
  ) => longLists.add({ identity, user, response, neverExpires, read }) as Promise<Result>

  async function list (
    identity: Identity, { from = firstId, limit }: { from?: string, limit: number }, response: Writable
  ): Promise<List<Row>> {
    const { user } = identity
    // Read one more row to see if more follow. For limit 0, read none: `Link` would never end.
    const maxRows = limit === 0 ? 0 : Math.min(maxFirstPageRows, limit + 1)
    const request = { identity, response, user, from, limit, maxRows, maxBytes: inlineBytes }
    const short = usersOfLongLists.has(user) ? undefined : await shortLists.add(request)
    if (short !== undefined && short.next === undefined) return { rows: short.toRows(), nextId: short.nextId }

    if (!budget.reserve(user, longListBytes, response)) throw overloaded
    const first = short ?? await readAlone(request, false, () =>
      pages.readPage({ ...request, maxBytes: maxFirstPageBytes }))
    recordCost(user, first)
    if (first.next === undefined) {
      await userWork.turn(user, first.bytes)
      return { rows: first.toRows(), nextId: first.nextId }
    }
    if (limit === Infinity) return { rows: pagesOf(request, first), nextId: undefined }
    // The header `Link` tells where the next list starts, and is sent before the rows. Find the end first.
    const second = await (prefetch(request, first) as Promise<Page<Row>>)
    const nextId = second.next === undefined ? second.nextId : await findEnd(request, second.next)
    return { rows: pagesOf(request, first, second), nextId }
  }

  /**
   * Returns the id of the first row after the limit. Ends the list before this row, not after `limit` rows:
   * a row that is created meanwhile would move the last row past the limit, and the next list would skip it.
   */
  async function findEnd (request: ListRequest, next: Cursor): Promise<string | undefined> {
    const end = await readAlone(request, true, () => pages.readEnd({ ...request, ...next }))
    if (end !== undefined) Object.assign(next, { limit: Infinity, to: (BigInt(end) - 1n).toString() })
    return end
  }

  /** Yields each page when the service may parse it. `read`: the pages that have already been read. */
  async function * pagesOf (
    request: ListRequest, ...read: Array<Page<Row>>
  ): AsyncGenerator<Page<Row>, void> {
    for (let page = read.shift(); page !== undefined;) {
      const next: Promise<Page<Row>> | Page<Row> | undefined = read.shift() ?? prefetch(request, page)
      await userWork.turn(request.user, page.bytes)
      yield page
      page = await next
    }
  }

  /** Requests the next page. The request never expires: the list has already begun. */
  function prefetch (
    request: ListRequest, { next, count, bytes }: Page<Row>
  ): Promise<Page<Row>> | undefined {
    if (next === undefined) return undefined
    const affordable = Math.floor(maxPageBytes / (bytes / count))
    const maxRows = Math.max(1, Math.min(maxPageRows, next.limit + 1, affordable))
    const page = readAlone(request, true, () =>
      pages.readPage({ ...request, ...next, maxRows, maxBytes: maxPageBytes }))
    // If the client disconnects, no code awaits the page. An unhandled rejection would crash the process.
    page.catch(() => {})
    return page
  }

  /** Returns undefined for each list that must be read alone. */
  async function readShort (lists: ListRequest[]): Promise<Array<Page<Row> | undefined>> {
    try {
      const found = await pages.readFirstPages(lists)
      return lists.map(({ user }, index) => {
        const page = found[index]
        if (page === undefined || page.isCostly) usersOfLongLists.set(user, true)
        return page
      })
    } catch (error) {
      if (!wasRolledBack(error)) throw error
      // One slow list may have made the statement reach its time limit.
      if (lists.length > 1) return []
      usersOfLongLists.set((lists[0] as ListRequest).user, true)
      throw error
    }
  }

  /** After a cheap first page, the next list of the user may be short again. */
  function recordCost (user: string, { isCostly, bytes }: Page<Row>): void {
    if (isCostly || bytes > inlineBytes) usersOfLongLists.set(user, true)
    else usersOfLongLists.delete(user)
  }

  return list
}
