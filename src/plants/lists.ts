// Several short lists share a statement. Long lists are read page by page, and their users take turns.
import type { Writable } from 'node:stream'
import { LRUCache } from 'lru-cache'
import type { Database } from '../database/database.ts'
import { overloaded } from '../errors.ts'
import { Batcher, type BatcherOptions, type Identity } from '../scheduling/batcher.ts'
import { inlineBytes, type MemoryBudget } from '../scheduling/memory-budget.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import {
  firstPage, readEnd, readFirstPages, readPage, readSmallPage, type Cursor, type ListRange, type Page,
  type PageRequest
} from './pages.ts'

interface ListRequest extends PageRequest {
  identity: Identity
  response: Writable
  queuedAt: number
}

/** Undefined if the page is too large for a short list. The service then reads the list as a long list. */
type MaybePage = Page | undefined

/** `maxPageSize` is in plants. Parsing 128 KiB of JSON takes about 2 ms. */
const [maxPageSize, maxPageBytes, maxFirstPageBytes] = [2000, 131_072, 65_536]

/** How many plants one statement may skip to find the end of a list. Skipping 10,000 takes about 1 ms. */
const maxSkipped = 10_000

/** A batch is slow if it takes over 100 ms and over four times the average of recent batches. */
const [slowMs, slowFactor] = [100, 4]

export function createLists (
  database: Database, budget: MemoryBudget, maxPlantBytes: number,
  /** For short lists. Other lists use these options with other limits. */
  batch: Pick<BatcherOptions<ListRequest, MaybePage>, 'limits' | 'maxQueued' | 'isRetryable'>
) {
  /** Users with a slow list in the last 10 s. Their lists share no statement with other users. */
  const slow = new LRUCache<string, true>({ max: 10_000, ttl: 10_000 })
  /** Users with a large first page in the last 10 s. Their lists are read as long lists from the start. */
  const large = new LRUCache<string, true>({ max: 10_000, ttl: 10_000 })
  let lastResultAt = 0
  let typicalMs = slowMs / slowFactor

  const shortLists = new Batcher(readShort, { ...batch, name: 'list', divert })
  type Read<Result> = (list: ListRequest) => Promise<Result>
  const alone = <Result>(name: string, read: Read<Result>, maxQueued = Infinity) =>
    new Batcher((lists: ListRequest[]) => Promise.all(lists.map(read)),
      { ...batch, limits: () => ({ maxItems: 1, maxInFlight: 1 }), maxQueued, name })
  // A slow batch marks all its users, even users with fast lists. Queue their lists apart from long lists.
  const slowLists = alone('slow_list', readSlow, batch.maxQueued)
  // No queue limit: the memory budget limits the long lists, and each queues one page at a time.
  const longLists = alone('long_list', readLarge)
  const ends = alone('list_end', (end) => readEnd(database, end))

  /** Returns the plants of a short list or the pages of a long list. `beyond` is the first id after them. */
  async function list (identity: Identity, range: ListRange, response: Writable) {
    const { user } = identity
    const queuedAt = performance.now()
    const request = { ...firstPage(user, range, maxFirstPageBytes), identity, response, queuedAt }
    const page = await shortLists.add(request)
    if (page !== undefined && page.next === undefined) return { plants: page.toPlants(), beyond: page.beyond }

    // Memory for the page that is being sent, and for the prefetched next page.
    const bytes = 2 * Math.max(maxPageBytes, maxPlantBytes)
    if (!budget.reserve(user, bytes, response)) throw overloaded
    const first = page ?? await longLists.add(request)
    if (first.next === undefined) {
      await userWork.turn(user, first.bytes)
      return { plants: first.toPlants(), beyond: first.beyond }
    }
    if (range.limit === Infinity) return { plants: pagesOf(request, first) }
    // The header `Link` tells where the next list starts, and is sent before the plants. Find the end first.
    const second = await (prefetch(request, first) as Promise<Page>)
    const beyond = second.next === undefined ? second.beyond : await setEnd(request, second.next)
    return { plants: pagesOf(request, first, second), beyond }
  }

  /**
   * Ends the list before the first plant beyond the limit. Returns this plant's id, the next list's start.
   * If only `limit` ended the list, a plant created meanwhile could push the last plant out of both lists.
   */
  async function setEnd (request: ListRequest, next: Cursor): Promise<string | undefined> {
    let end: string | undefined = next.from
    do {
      const limit = Math.min(next.limit, maxSkipped)
      next.limit -= limit
      end = await ends.add({ ...request, from: end, limit, queuedAt: Infinity })
    } while (end !== undefined && next.limit > 0)
    next.limit = Infinity
    if (end !== undefined) next.to = (BigInt(end) - 1n).toString()
    return end
  }

  async function * pagesOf (request: ListRequest, first: Page, second?: Page): AsyncGenerator<Page, void> {
    let next: Promise<Page> | Page | undefined = second ?? prefetch(request, first)
    yield first
    while (next !== undefined) {
      const page: Page = await next
      next = prefetch(request, page)
      yield page
    }
  }

  /** Requests the next page. The request never expires: the list has already begun. */
  function prefetch (request: ListRequest, { next, count, bytes }: Page): Promise<Page> | undefined {
    if (next === undefined) return undefined
    const affordable = Math.floor(maxPageBytes / (bytes / count))
    const size = Math.max(1, Math.min(maxPageSize, next.limit + 1, affordable))
    const cursor = { ...next, size, maxBytes: maxPageBytes }
    const page = longLists.add({ ...request, ...cursor, queuedAt: Infinity })
    // If the client disconnects, no code awaits the page. An unhandled rejection would crash the process.
    page.catch(() => {})
    return page
  }

  /** Lists of slow users, and retried lists, are read one by one. Large users have only long lists. */
  function divert (list: ListRequest, isRetry: boolean): Promise<MaybePage> | undefined {
    if (large.has(list.user)) return Promise.resolve(undefined)
    return isRetry || slow.has(list.user) ? slowLists.add(list) : undefined
  }

  async function readShort (lists: ListRequest[]): Promise<MaybePage[]> {
    const sentAt = performance.now()
    const pages = await readFirstPages(database, lists)
    // A statement starts only after the previous statement's result.
    const ms = performance.now() - Math.max(sentAt, lastResultAt)
    lastResultAt = performance.now()
    const wasSlow = ms > slowMs && ms > slowFactor * typicalMs
    typicalMs += (ms - typicalMs) / 16
    for (const [index, { user }] of lists.entries()) {
      if (wasSlow) slow.set(user, true)
      if (pages[index] === undefined) large.set(user, true)
    }
    return pages
  }

  async function readSlow (list: ListRequest): Promise<MaybePage> {
    const startedAt = performance.now()
    const page = await readSmallPage(database, { ...list, maxBytes: inlineBytes })
    if (performance.now() - startedAt < slowMs) slow.delete(list.user)
    else slow.set(list.user, true)
    return page
  }

  async function readLarge (list: ListRequest): Promise<Page> {
    const page = await readPage(database, list)
    const isFirst = list.queuedAt !== Infinity
    if (isFirst && page.bytes > inlineBytes) large.set(list.user, true)
    else if (isFirst) large.delete(list.user)
    return page
  }

  return list
}
