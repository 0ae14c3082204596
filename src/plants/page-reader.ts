// How large the pages of long lists are: the larger the quicker their reader is, as far as memory goes.
import { smallestPage, type Page, type PageRequest, type Rest } from './pages.ts'

/** Everybody else waits some milliseconds while one is made into JSON. A third of the time of 500 each. */
const largestPage = 4000

/** How many the pages of all readers together may have, as far as that leaves each the smallest. */
const sharedPlants = 20_000

/** Reads the pages that follow a first one as their reader takes them. */
type Read = (owner: string, rest: Rest, size: number, answer: PageRequest['answer']) => Promise<Page>

export function createPageReader (read: Read) {
  let readers = 0
  const largest = () => Math.max(smallestPage, Math.min(largestPage, Math.floor(sharedPlants / readers)))

  async function timed (...request: Parameters<Read>): Promise<{ page: Page, ms: number, isFull: boolean }> {
    const askedAt = performance.now()
    const page = await read(...request)
    // One with large plants has fewer than it might. Whoever takes it may empty it.
    return { page, ms: performance.now() - askedAt, isFull: page.plants.length === request[2] }
  }

  return async function * pagesAfter (
    owner: string, first: Rest | undefined, answer?: PageRequest['answer']
  ): AsyncGenerator<Page, void> {
    readers++
    let size = smallestPage
    let isQuick = false
    const ask = (rest: Rest | undefined) => {
      if (rest === undefined) return undefined
      size = isQuick ? Math.min(size * 2, largest()) : smallestPage
      const asked = timed(owner, rest, size, answer)
      // Of one that nobody takes any more nobody hears.
      asked.catch(() => {})
      return asked
    }
    try {
      for (let next = ask(first); next !== undefined;) {
        const { page, ms, isFull } = await next
        const readAt = performance.now()
        // PostgreSQL reads on while a page is made into JSON for one who keeps up.
        const ahead = isQuick ? ask(page.rest) : undefined
        yield page
        // Taken before another one could have been read.
        isQuick = isFull && performance.now() - readAt < ms
        next = ahead ?? ask(page.rest)
      }
    } finally {
      readers--
    }
  }
}
