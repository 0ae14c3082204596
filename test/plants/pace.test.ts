import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { createPace } from '../../src/plants/pace.ts'
import type { Rest } from '../../src/plants/pages.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

/** Pages without end, and how large they were asked for. */
function startPace (readMs: number, isFull = () => true) {
  const asked: number[] = []
  const pagesAfter = createPace(async (_owner: string, rest: Rest, size: number) => {
    asked.push(size)
    if (readMs > 0) await delay(readMs)
    return { plants: Array.from({ length: isFull() ? size : 7 }, () => ({ name: 'Ivy' })), rest }
  })
  return { asked, begin: () => pagesAfter('alice', { from: '1', limit: Infinity }) }
}

t.test('pages grow for a reader who takes each before the next could have been read', async (t) => {
  const { asked, begin } = startPace(200)
  const pages = begin()
  for (let count = 0; count < 6; count++) await pages.next()
  t.strictSame(asked, [500, 1000, 2000, 4000, 4000, 4000])
})

t.test('a reader who is slow gets small ones', async (t) => {
  const { asked, begin } = startPace(0)
  const pages = begin()
  for (let count = 0; count < 4; count++) {
    await pages.next()
    await delay(200)
  }
  t.strictSame(asked, [500, 500, 500, 500])
})

t.test('where plants are large pages stay small', async (t) => {
  const { asked, begin } = startPace(200, () => false)
  const pages = begin()
  for (let count = 0; count < 3; count++) await pages.next()
  t.strictSame(asked, [500, 500, 500])
})

t.test('all readers together have no more than a bound, and one who leaves makes room', async (t) => {
  const { asked, begin } = startPace(200)
  const readers = Array.from({ length: 20 }, begin)
  for (let count = 0; count < 4; count++) await Promise.all(readers.map((pages) => pages.next()))
  t.equal(Math.max(...asked), 1000, '20,000 plants are shared')
  await Promise.all(readers.slice(1).map((pages) => pages.return()))
  for (let count = 0; count < 3; count++) await readers[0]?.next()
  t.equal(asked.at(-1), 4000)
})

t.test('a list is whole and in order, whatever the size of its pages', async (t) => {
  const { as, url } = await startApp(t)
  await sql(url, `insert into plants (owner, id, name)
    select 'alice', id * 3 - 20000, 'plant ' || id from generate_series(1, 20001) id`)
  const expected = Array.from({ length: 20_001 }, (_, index) => ({ name: `plant ${index + 1}` }))
  const alice = await as('alice')
  const queries = ['', '?limit=501', '?limit=7500', '?limit=20000']
  const [whole, ...parts] = await Promise.all(queries.map((query) => alice.list(query)))
  t.strictSame(whole?.json(), expected)
  for (const part of parts) {
    const plants = part.json() as unknown[]
    t.strictSame(plants, expected.slice(0, plants.length))
  }
  t.strictSame(parts.map((part) => part.json().length), [501, 7500, 20_000])
})
