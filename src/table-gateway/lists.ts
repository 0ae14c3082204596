// Reads lists. Short lists share a statement. Long lists are read page by page, and their users take turns.
import type { Writable } from 'node:stream'
import { LRUCache } from 'lru-cache'
import type { Database } from '../database/database.ts'
import { overloaded } from '../errors.ts'
import { createBatcher, type BatcherOptions, type Identity, type Work } from '../scheduling/batcher.ts'
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
/** How many rows one statement may skip to find the end of a list. Skipping 10,000 takes about 1 ms. */
const maxSkipped = 10_000
/** The server reads a page of 100 rows from its memory in about 0.1 ms. */
const slowSeconds = 0.01

export function createLists<Row> (
  database: Database, table: Table, statements: Statements, budget: MemoryBudget, maxRowBytes: number,
  /** For short lists. Other lists use these options with other limits. */
  batch: Omit<BatcherOptions, 'name'>
) {
  const pages = createPageReader<Row>(database, table, statements)
  /** Users with a slow first page, or with one that is too large for a short list, in the last 10 s. */
  const isolatedUsers = new LRUCache<string, 'slow' | 'large'>({ max: 10_000, ttl: 10_000 })

  // From a statement for several lists, Citus would also return an empty page of each shard without the list.
  const shortLists = createBatcher(readShort,
    { ...batch, isOneByOne: database.isDistributed, name: `${table.name}_list` })
  const slowLists = oneByOne('slow_list', readSlow, batch.maxQueued)
  // No queue limit: the memory budget limits the long lists, and each queues one page at a time.
  const longLists = oneByOne('long_list', pages.readPage)
  const endReads = oneByOne('list_end', pages.readEnd)

  /** Reads one list at a time, and each list alone. */
  function oneByOne<Result> (
    name: string, read: (list: ListRequest) => Promise<Result>, maxQueued = Infinity
  ) {
    return createBatcher((lists: ListRequest[]) => Promise.all(lists.map(read)), {
      ...batch,
      isOneByOne: undefined,
      limits: { maxItems: 1, maxInFlight: 1 },
      maxQueued,
      name: `${table.name}_${name}`
    })
  }

  async function list (
    identity: Identity, { from = firstId, limit }: { from?: string, limit: number }, response: Writable
  ): Promise<List<Row>> {
    const { user } = identity
    // Read one more row to see if more follow. For limit 0, read none: `Link` would never end.
    const maxRows = limit === 0 ? 0 : Math.min(maxFirstPageRows, limit + 1)
    const request = { identity, response, user, from, limit, maxRows, maxBytes: maxFirstPageBytes }
    let page = isolatedUsers.has(user) ? undefined : await shortLists.add(request)
    // There is no page if the user is isolated, perhaps only since the list was queued, or if the shared
    // statement failed.
    if (page === undefined && isolatedUsers.get(user) !== 'large') page = await slowLists.add(request)
    if (page !== undefined && page.next === undefined) return { rows: page.toRows(), nextId: page.nextId }

    // Memory for the page that is being sent, and for the prefetched next page.
    const bytes = 2 * Math.max(maxPageBytes, maxRowBytes)
    if (!budget.reserve(user, bytes, response)) throw overloaded
    const first = page ?? await longLists.add(request)
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
    let end: string | undefined = next.from
    do {
      const limit = Math.min(next.limit, maxSkipped)
      next.limit -= limit
      end = await endReads.add({ ...request, from: end, limit, queuedAt: Infinity })
    } while (end !== undefined && next.limit > 0)
    next.limit = Infinity
    if (end !== undefined) next.to = (BigInt(end) - 1n).toString()
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
    const page = longLists.add({ ...request, ...next, maxRows, maxBytes: maxPageBytes, queuedAt: Infinity })
    // If the client disconnects, no code awaits the page. An unhandled rejection would crash the process.
    page.catch(() => {})
    return page
  }

  /** Returns undefined for a page that is too large, and for lists that could delay the other lists. */
  async function readShort (lists: ListRequest[], isRetry: boolean) {
    // Skip users who were isolated while queued. Skip retries: their shared statement failed.
    const shared = isRetry ? [] : lists.filter(({ user }) => !isolatedUsers.has(user))
    if (shared.length === 0) return []
    const found = await pages.readFirstPages(shared)
    for (const [index, { user }] of shared.entries()) recordFirstPage(user, found[index])
    return lists.map((list) => found[shared.indexOf(list)])
  }

  async function readSlow (list: ListRequest) {
    const page = await pages.readSmallPage(database.readLong, { ...list, maxBytes: inlineBytes })
    recordFirstPage(list.user, page)
    return page
  }

  /** Isolates a user with a large or slow first page. A fast first page ends the isolation of a slow user. */
  function recordFirstPage (user: string, firstPage: Page<Row> | undefined): void {
    if (firstPage === undefined) isolatedUsers.set(user, 'large')
    else if (firstPage.seconds > slowSeconds) isolatedUsers.set(user, 'slow')
    else isolatedUsers.delete(user)
  }

  return list
}
