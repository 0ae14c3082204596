// Several short lists share a statement. Long lists are read page by page, and their users take turns.
import type { Writable } from 'node:stream'
import { LRUCache } from 'lru-cache'
import type { Database } from '../database/database.ts'
import { overloaded } from '../errors.ts'
import { createBatcher, type BatcherOptions, type Identity, type Work } from '../scheduling/batcher.ts'
import { inlineBytes, type MemoryBudget } from '../scheduling/memory-budget.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import {
  firstId, readEnd, readFirstPages, readPage, readSmallPage, type Cursor, type Page, type PageRequest
} from './pages.ts'

type ListRequest = PageRequest & Work

/** A first page has at most 100 plants, and one more plant that shows whether the list goes on. */
const [maxPagePlants, maxFirstPagePlants] = [2000, 101]
/** Parsing 128 KiB of JSON takes about 2 ms. */
const [maxPageBytes, maxFirstPageBytes] = [131_072, 65_536]
/** How many plants one statement may skip to find the end of a list. Skipping 10,000 takes about 1 ms. */
const maxSkipped = 10_000
/** The server reads a page of 100 plants from its memory in about 0.1 ms. */
const slowSeconds = 0.01

export function createLists (
  database: Database, budget: MemoryBudget, maxPlantBytes: number,
  /** For short lists. Other lists use these options with other limits. */
  batch: Omit<BatcherOptions, 'name'>
) {
  /** Users with a slow list, or with a first page that was too large for a short list, in the last 10 s. */
  const expensive = new LRUCache<string, 'slow' | 'large'>({ max: 10_000, ttl: 10_000 })

  const shortLists = createBatcher(readShort, { ...batch, name: 'list' })
  const alone = <Result>(name: string, read: (list: ListRequest) => Promise<Result>, maxQueued = Infinity) =>
    createBatcher((lists: ListRequest[]) => Promise.all(lists.map(read)),
      { ...batch, isOneByOne: undefined, limits: { maxItems: 1, maxInFlight: 1 }, maxQueued, name })
  const slowLists = alone('slow_list', readSlow, batch.maxQueued)
  // No queue limit: the memory budget limits the long lists, and each queues one page at a time.
  const longLists = alone('long_list', (list) => readPage(database, list))
  const ends = alone('list_end', (end) => readEnd(database, end))

  /** Returns the plants of a short list or the pages of a long list. `beyond` is the first id after them. */
  async function list (
    identity: Identity, { from = firstId, limit }: { from?: string, limit: number }, response: Writable
  ) {
    const { user } = identity
    // Read one more plant to see if more follow. For limit 0, read none: `Link` would never end.
    const maxPlants = limit === 0 ? 0 : Math.min(maxFirstPagePlants, limit + 1)
    const request = { identity, response, user, from, limit, maxPlants, maxBytes: maxFirstPageBytes }
    let page = expensive.has(user) ? undefined : await shortLists.add(request)
    // No page: the user is slow, perhaps only since the list was queued, or the shared statement failed.
    if (page === undefined && expensive.get(user) !== 'large') page = await slowLists.add(request)
    if (page !== undefined && page.next === undefined) return { plants: page.toPlants(), beyond: page.beyond }

    // Memory for the page that is being sent, and for the prefetched next page.
    const bytes = 2 * Math.max(maxPageBytes, maxPlantBytes)
    if (!budget.reserve(user, bytes, response)) throw overloaded
    const first = page ?? await longLists.add(request)
    if (first.next === undefined) {
      await userWork.turn(user, first.bytes)
      return { plants: first.toPlants(), beyond: first.beyond }
    }
    if (limit === Infinity) return { plants: pagesOf(request, first) }
    // The header `Link` tells where the next list starts, and is sent before the plants. Find the end first.
    const second = await (prefetch(request, first) as Promise<Page>)
    const beyond = second.next === undefined ? second.beyond : await setEnd(request, second.next)
    return { plants: pagesOf(request, first, second), beyond }
  }

  /**
   * Ends the list before the first plant beyond the limit. Returns this plant's id, the next list's start.
   * If only `limit` ended the list, a plant created meanwhile could move the last plant past the limit. The
   * next list begins after that plant, so neither list would have it.
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

  /** Yields each page when the service may parse it. `pages`: the pages that have already been read. */
  async function * pagesOf (request: ListRequest, ...pages: Page[]): AsyncGenerator<Page, void> {
    for (let page = pages.shift(); page !== undefined;) {
      const next: Promise<Page> | Page | undefined = pages.shift() ?? prefetch(request, page)
      await userWork.turn(request.user, page.bytes)
      yield page
      page = await next
    }
  }

  /** Requests the next page. The request never expires: the list has already begun. */
  function prefetch (request: ListRequest, { next, count, bytes }: Page): Promise<Page> | undefined {
    if (next === undefined) return undefined
    const affordable = Math.floor(maxPageBytes / (bytes / count))
    const maxPlants = Math.max(1, Math.min(maxPagePlants, next.limit + 1, affordable))
    const page = longLists.add({ ...request, ...next, maxPlants, maxBytes: maxPageBytes, queuedAt: Infinity })
    // If the client disconnects, no code awaits the page. An unhandled rejection would crash the process.
    page.catch(() => {})
    return page
  }

  /** Returns undefined for a page that is too large, and for lists that could delay the other lists. */
  async function readShort (lists: ListRequest[], isRetry: boolean) {
    // Skip users who became expensive in the queue. Skip retries: their shared statement failed.
    const cheap = isRetry ? [] : lists.filter(({ user }) => !expensive.has(user))
    if (cheap.length === 0) return []
    const pages = await readFirstPages(database, cheap)
    for (const [index, { user }] of cheap.entries()) mark(user, pages[index])
    return lists.map((list) => pages[cheap.indexOf(list)])
  }

  async function readSlow (list: ListRequest) {
    const page = await readSmallPage(database.readLong, { ...list, maxBytes: inlineBytes })
    mark(list.user, page)
    return page
  }

  /** Call this with the first page of a user's list. A fast page of a user who was slow ends the mark. */
  function mark (user: string, page: Page | undefined): void {
    if (page === undefined) expensive.set(user, 'large')
    else if (page.seconds > slowSeconds) expensive.set(user, 'slow')
    else expensive.delete(user)
  }

  return list
}
