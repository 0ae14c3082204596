// How large the pages of long lists are: the larger the quicker their reader is, as far as memory goes.
import { smallestPage, type Page, type PageRequest, type Rest } from './pages.ts'

/** Everybody else waits some milliseconds while one is made into JSON. A third of the time of 500 each. */
const largestPage = 4000

/** How many the pages of all readers together may have, as far as that leaves each the smallest. */
const sharedPlants = 20_000

/** Reads the pages that follow a first one as their reader takes them. */
type Read = (owner: string, rest: Rest, size: number, answer: PageRequest['answer']) => Promise<Page>

export function createPace (read: Read) {
  let readers = 0

  return async function * pagesAfter (
    owner: string, first: Rest | undefined, answer?: PageRequest['answer']
  ): AsyncGenerator<Page, void> {
    readers++
    let size = smallestPage
    try {
      for (let rest = first; rest !== undefined;) {
        size = Math.max(smallestPage, Math.min(size, largestPage, Math.floor(sharedPlants / readers)))
        const askedAt = performance.now()
        const page = await read(owner, rest, size, answer)
        const readAt = performance.now()
        // One with large plants has fewer than it might. Whoever takes it may empty it.
        const isFull = page.plants.length === size
        yield page
        // Taken before another one could have been read.
        const isQuick = performance.now() - readAt < readAt - askedAt
        size = isQuick && isFull ? size * 2 : smallestPage
        rest = page.rest
      }
    } finally {
      readers--
    }
  }
}
