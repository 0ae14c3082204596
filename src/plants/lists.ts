// Short lists share statements. Long lists are read in pages. Only one such page is read at any time.
import type { Writable } from 'node:stream'
import { LRUCache } from 'lru-cache'
import type { Database } from '../database/database.ts'
import { overloaded } from '../errors.ts'
import { Batcher, type BatcherOptions } from '../scheduling/batcher.ts'
import { inlineBytes, type MemoryBudget } from '../scheduling/memory-budget.ts'
import { userWork } from '../scheduling/tick-limiter.ts'
import {
  firstPage, readEnd, readFirstPages, readPage, readSmallPage, type Cursor, type ListRange, type Page,
  type PageRequest
} from './pages.ts'
import type { Plant } from './schemas.ts'

interface ListsOptions {
  database: Database
  budget: MemoryBudget
  maxPlantBytes: number
  /** For the statements of first pages. */
  batch: Pick<BatcherOptions<ListRequest, MaybePage>, 'limits' | 'maxQueued' | 'isRetryable'>
}

interface ListRequest extends PageRequest {
  response: Writable
  queuedAt: number
}

/** Undefined for a page of more than `inlineBytes`, which has to be read as a long list. */
type MaybePage = Page | undefined

interface List {
  /** The plants of a list that fits into one page, or the pages of a long list. */
  plants: Plant[] | AsyncIterable<Page>
  /** The id of the first plant beyond the limit, if there is one. */
  beyond?: string | undefined
}

/** The limits of a page, in plants and in bytes, for long lists. Parsing 128 KiB of JSON takes some 2 ms. */
const [maxPageSize, maxPageBytes, maxFirstPageBytes] = [2000, 131_072, 65_536]

/** How many plants one statement skips to find the end of a list. Skipping them takes some 1 ms. */
const maxSkipped = 10_000

/** A list is slow when it takes over 100 ms and over four times as long as the average list. */
const [slowMs, slowFactor] = [100, 4]

export class Lists {
  readonly #options: ListsOptions
  /** Users with a slow last list. Their next list is read alone, so that it delays no other user. */
  readonly #slow = new LRUCache<string, true>({ max: 10_000, ttl: 10_000 })
  /** Users with a large last list. Their next list is read as a long list right away. */
  readonly #large = new LRUCache<string, true>({ max: 10_000, ttl: 10_000 })
  readonly #shortLists: Batcher<ListRequest, MaybePage>
  readonly #slowLists: Batcher<ListRequest, MaybePage>
  readonly #longLists: Batcher<ListRequest, Page>
  readonly #ends: Batcher<ListRequest, string | undefined>
  #lastResultAt = 0
  #typicalMs = slowMs / slowFactor

  constructor (options: ListsOptions) {
    this.#options = options
    this.#shortLists = new Batcher((lists) => this.#readTogether(lists), {
      ...options.batch,
      name: 'list',
      runAlone: (list) => this.#slowLists.add(list)
    })
    const alone = { ...options.batch, limits: () => oneAtATime }
    // Slow lists have a queue of their own, since a slow batch also marks users with fast lists.
    this.#slowLists = new Batcher(async ([list]) => [await this.#readSlow(list as ListRequest)],
      { ...alone, name: 'slow_list' })
    // No limit is needed: each long list holds a part of the memory budget and has at most two entries.
    const long = { ...alone, maxQueued: Infinity }
    this.#longLists = new Batcher(async ([list]) => [await this.#readLarge(list as ListRequest)],
      { ...long, name: 'long_list' })
    this.#ends = new Batcher(async ([end]) => [await readEnd(options.database, end as ListRequest)],
      { ...long, name: 'list_end' })
  }

  async list (user: string, range: ListRange, response: Writable): Promise<List> {
    const request = { ...firstPage(user, range, maxFirstPageBytes), response, queuedAt: performance.now() }
    const lists = this.#slow.has(user) ? this.#slowLists : this.#shortLists
    const page = this.#large.has(user) ? undefined : await lists.add(request)
    if (page !== undefined && page.next === undefined) return { plants: page.toPlants(), beyond: page.beyond }

    const { budget, maxPlantBytes } = this.#options
    // A long list holds two pages at a time: one that is being sent and one that is prefetched.
    const bytes = 2 * Math.max(maxPageBytes, maxPlantBytes)
    if (!budget.reserve(user, bytes, response)) throw overloaded
    const first = page ?? await this.#longLists.add(request)
    if (first.next === undefined) {
      await userWork.turn(user, first.bytes)
      return { plants: first.toPlants(), beyond: first.beyond }
    }
    if (range.limit === Infinity) return { plants: this.#pages(request, first) }
    // The header `Link` is sent before the plants, so find the end of the list first.
    const second = await (this.#prefetch(request, first) as Promise<Page>)
    const beyond = second.next === undefined ? second.beyond : await this.#setEnd(request, second.next)
    return { plants: this.#pages(request, first, second), beyond }
  }

  /**
   * Ends the list before the first plant beyond its limit, and returns the id of that plant. Ending after
   * `limit` plants would lose some: plants created meanwhile would push others past the end of this list, but
   * the next list starts at the returned id.
   */
  async #setEnd (request: ListRequest, next: Cursor): Promise<string | undefined> {
    let end: string | undefined = next.from
    do {
      const limit = Math.min(next.limit, maxSkipped)
      next.limit -= limit
      end = await this.#ends.add({ ...request, from: end, limit, queuedAt: Infinity })
    } while (end !== undefined && next.limit > 0)
    next.limit = Infinity
    if (end !== undefined) next.to = (BigInt(end) - 1n).toString()
    return end
  }

  async * #pages (request: ListRequest, first: Page, second?: Page): AsyncGenerator<Page, void> {
    let next: Promise<Page> | Page | undefined = second ?? this.#prefetch(request, first)
    yield first
    while (next !== undefined) {
      const page: Page = await next
      next = this.#prefetch(request, page)
      yield page
    }
  }

  /** Requests the next page. Its time in the queue is not limited, because the list has begun. */
  #prefetch (request: ListRequest, { next, count, bytes }: Page): Promise<Page> | undefined {
    if (next === undefined) return undefined
    const affordable = Math.floor(maxPageBytes / (bytes / count))
    const size = Math.max(1, Math.min(maxPageSize, next.limit + 1, affordable))
    const cursor = { ...next, size, maxBytes: maxPageBytes }
    const page = this.#longLists.add({ ...request, ...cursor, queuedAt: Infinity })
    // Nothing awaits the page when the client has gone. An unhandled rejection would crash the process.
    page.catch(() => {})
    return page
  }

  async #readTogether (lists: ListRequest[]): Promise<Array<MaybePage | Promise<MaybePage>>> {
    // While these lists were queued, another list of the same user may have been slow or large.
    const short = lists.filter(({ user }) => !this.#slow.has(user) && !this.#large.has(user))
    const pages = new Map(short.length > 0 ? await this.#readShort(short) : [])
    return lists.map((list) => {
      const isDeferred = !pages.has(list) && this.#slow.has(list.user)
      return isDeferred ? this.#slowLists.add(list) : pages.get(list)
    })
  }

  async #readShort (lists: ListRequest[]): Promise<Array<[ListRequest, MaybePage]>> {
    const sentAt = performance.now()
    const pages = await readFirstPages(this.#options.database, lists)
    const ms = this.#since(sentAt)
    const wasSlow = ms > slowMs && ms > slowFactor * this.#typicalMs
    this.#typicalMs += (ms - this.#typicalMs) / 16
    return lists.map((list, index) => {
      if (wasSlow) this.#slow.set(list.user, true)
      if (pages[index] === undefined) this.#large.set(list.user, true)
      return [list, pages[index]]
    })
  }

  /** The ms that a statement ran. PostgreSQL begins a pipelined statement when the previous one has ended. */
  #since (sentAt: number): number {
    const now = performance.now()
    const ms = now - Math.max(sentAt, this.#lastResultAt)
    this.#lastResultAt = now
    return ms
  }

  async #readSlow (list: ListRequest): Promise<MaybePage> {
    const startedAt = performance.now()
    const page = await readSmallPage(this.#options.database, list)
    if (performance.now() - startedAt < slowMs) this.#slow.delete(list.user)
    else this.#slow.set(list.user, true)
    return page
  }

  async #readLarge (list: ListRequest): Promise<Page> {
    const page = await readPage(this.#options.database, list)
    const isFirst = list.queuedAt !== Infinity
    if (isFirst && page.bytes > inlineBytes) this.#large.set(list.user, true)
    else if (isFirst) this.#large.delete(list.user)
    return page
  }
}

const oneAtATime = { maxItems: 1, maxInFlight: 1 }
