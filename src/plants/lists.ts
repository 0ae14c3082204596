// Short lists share statements. Long lists are read page by page, one statement at a time.
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

/** Undefined when the page has more than `inlineBytes`. */
type MaybePage = Page | undefined

/** All plants of a list of one page, or the pages of a longer one. */
interface List {
  plants: Plant[] | AsyncIterable<Page>
  /** The id of the first plant beyond the limit, if there is one. */
  beyond?: string | undefined
}

/** The limits of a page of a long list: some 2 ms of JSON. */
const [maxPageSize, maxPageBytes, maxFirstPageBytes] = [2000, 131_072, 65_536]

/** The plants that one statement skips: some 1 ms. */
const maxSkipped = 10_000

/** A list is slow when it takes longer than this time, and several times as long as others. */
const [slowMs, slowFactor] = [100, 4]

export class Lists {
  readonly #options: ListsOptions
  /** Users with a slow last list. The next one is read alone, so that it delays no short list. */
  readonly #slow = new LRUCache<string, true>({ max: 10_000, ttl: 10_000 })
  /** Users with a large last list. The short lists would read the next one in vain. */
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
    // A slow batch may contain lists of other users: these must not wait for large lists.
    this.#slowLists = new Batcher(async ([list]) => [await this.#readSlow(list as ListRequest)],
      { ...alone, name: 'slow_list' })
    // The memory budget bounds the queues: a long list has two entries at most.
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
    // For two pages: one is being sent, one is prefetched.
    const bytes = 2 * Math.max(maxPageBytes, maxPlantBytes)
    if (!budget.reserve(user, bytes, response)) throw overloaded
    const first = page ?? await this.#longLists.add(request)
    if (first.next === undefined) {
      await userWork.turn(user, first.bytes)
      return { plants: first.toPlants(), beyond: first.beyond }
    }
    if (range.limit === Infinity) return { plants: this.#pages(request, first) }
    // The header precedes the plants and says whether more follow.
    const second = await (this.#prefetch(request, first) as Promise<Page>)
    const beyond = second.next === undefined ? second.beyond : await this.#setEnd(request, second.next)
    return { plants: this.#pages(request, first, second), beyond }
  }

  /**
   * Lets the list end before the first plant beyond the limit, and returns its id. If the list ended by the
   * number of plants, new ones could push others out, which would then be in neither page.
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

  /** A list that has begun neither expires nor is rejected. */
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
    // Since these lists were queued, other lists of their users may have been slow or large.
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

  /** Pipelined statements run one after the other: a statement began when the one before ended. */
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
