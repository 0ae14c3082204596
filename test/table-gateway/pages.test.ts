// Tests the pages of lists: those that a client requests, and those that the service reads and sends.
import { PassThrough } from 'node:stream'
import t from 'tap'
import type { Statement } from '../../src/database/database.ts'
import type { Identity } from '../../src/scheduling/batcher.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { createGateway } from '../../src/table-gateway/gateway.ts'
import {
  bodyOf, booksTable, startLibrary, storeBooks, type Book, type StoredBook
} from '../support/books.ts'
import { sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { cursorAt, linkTo, nextQuery } from '../support/plants.ts'

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const range = (length: number) => Array.from({ length }, (_, index) => index)

const { app, as, database, url } = await startLibrary(t)

t.test('every value of after that no Link header has is rejected', async (t) => {
  const carol = await as('carol')
  const message = 'after must be the value from the Link header of a list, given once.'
  const cursor = cursorAt(42)
  const rejected = [
    '', '=', '=42', '=12345678', `=${cursor}=`, `=${cursor}A`, `=${cursor.slice(0, -1)}N`, `=${cursor}%20`,
    `=${cursor}&after=${cursor}`,
    ...['-0', '042', ' 42', 'x', String(largest + 1n), String(smallest - 1n)].map((text) =>
      `=${Buffer.from(text).toString('base64url')}`)
  ]
  for (const value of rejected) isError(t, await carol.list(`?after${value}`), 40016, message, value)
  t.equal((await carol.list(`?after=${encodeURIComponent(cursor).replace('N', '%4E')}`)).statusCode, 200)
})

const escaped = '"\\/\b\f\n\r\t\u0001\u001f\u007f\u0085\u2028\u2029 </script> 🌵 é \u{10ffff}'
// The service first reads 101 books, then at most 2,000 at a time. Another statement reads a page that has a
// text of more than 256 bytes. The last book of each list has the largest id.
for (const [kind, limits, bookAt, extremes] of [
  ['few', [0, 1, 2, 3, 6, 7, 9, 2147483647], (index) => ({ title: `book ${index}` }),
    [smallest, smallest + 1n, -(2n ** 53n) - 1n, -1n, 0n, 1n, 2n ** 53n + 1n, largest - 1n, largest]],
  ['short', [1, 99, 100, 101, 102, 1999, 2000, 2001, 2099, 2100, 2101, 2102, 4728],
    (index) => ({ title: `${escaped} ${index}`, ...index % 2 === 0 && { subTitle: `subtitle ${index}` } })],
  ['small and large', [1, 27, 28, 100, 150], (index) => [
    { title: 'small', subTitle: 'small' }, { title: 'n'.repeat(256), subTitle: 't'.repeat(256) },
    { title: 'small', subTitle: 't'.repeat(257) }, { title: '🌵'.repeat(129), subTitle: escaped },
    { title: 'small' },
    { title: 'n'.repeat(60_000), subTitle: '' }, { title: 'n'.repeat(300) }
  ][index % 7]],
  ['one large', [100, 149, 150, 151, 152, 2200],
    (index) => ({ title: index === 150 ? '\u0001'.repeat(30_000) : `book ${index}` })]
] as Array<[
  kind: string, limits: number[], bookAt: (index: number) => Omit<StoredBook, 'id'>, ids?: bigint[]
]>) {
  t.test(`a page of any size is complete and links to the next page: ${kind} books`, async (t) => {
    const last = limits.at(-1) as number
    const ids = extremes ?? range(last).map((index) => largest - 3n * BigInt(last - 1 - index))
    const rows = ids.map((id, index) => ({ id, ...bookAt(index) }))
    await storeBooks(url, kind, rows.toReversed())
    const user = await as(kind)
    for (const limit of [...limits, ids.length - 1, ids.length + 1]) {
      for (const start of [0, 7]) {
        const response = await user.list(`?limit=${limit}&after=${cursorAt(ids[start] as bigint)}`)
        const next = limit > 0 ? rows[start + limit] : undefined
        t.equal(response.headers.link, next && linkTo(limit, next.id, 'books'), `${limit} from ${start}`)
        t.equal(response.body, bodyOf(rows.slice(start, start + limit)), `${limit} from ${start}`)
      }
    }
    const end = await user.list(`?after=${cursorAt(ids.at(-101) ?? smallest)}`)
    t.equal(end.body, bodyOf(rows.slice(-101)), 'a full page ends with the largest id')
    const whole = await user.list()
    t.equal(whole.body, bodyOf(rows))
    t.match(whole.headers, { 'content-type': 'application/json', link: undefined })
  })
}

t.test('the end of a very long page is found in steps', async (t) => {
  const count = 22_102
  await sql(url, `insert into books select 'victor', id, 'n' from generate_series(1, ${count}) as id`)
  const victor = await as('victor')
  // After 2,101 books the service looks for the end of the page in steps of 10,000 books.
  for (const limit of [12_100, 12_101, 12_102, 22_101, 22_102, 50_000]) {
    const response = await victor.list(`?limit=${limit}`)
    t.equal(response.json().length, Math.min(limit, count))
    t.equal(response.headers.link, limit < count ? linkTo(limit, limit + 1, 'books') : undefined, `${limit}`)
  }
})

t.test('a Link costs no statement up to 2,000 books, and HEAD reads only what its Link needs', async (t) => {
  await sql(url, "insert into books select 'trent', id, 'n' from generate_series(1, 5000) as id")
  const { authorization, list } = await as('trent')
  const head = (query: string) =>
    app.inject({ method: 'HEAD', url: `/books${query}`, headers: { authorization } })
  const reads = t.capture(database, 'read', database.read)
  const longReads = t.capture(database, 'readLong', database.readLong)
  const countStatements = () => reads().length + longReads().length
  for (const [limit, ofGet, ofHead] of [
    [20, 1, 1], [100, 1, 1], [101, 2, 2], [2000, 2, 2], [2100, 2, 2], [2200, 4, 3]
  ] as const) {
    for (const [request, expected] of [[list, ofGet], [head, ofHead]] as const) {
      const { headers: { link }, statusCode } = await request(`?limit=${limit}`)
      t.strictSame([statusCode, link, countStatements()], [200, linkTo(limit, limit + 1, 'books'), expected])
    }
  }
  t.match(await head(''), { statusCode: 200, body: '', headers: { 'content-type': 'application/json' } })
  t.equal(countStatements(), 1)
})

t.test('a page has a bounded size, however long a text of its books is', async (t) => {
  const kinds = [
    { calls: t.capture(database, 'read', database.read), most: 17_000 },
    { calls: t.capture(database, 'readLong', database.readLong), most: 140_000 }
  ]
  for (const field of ['title', 'subTitle']) {
    for (const [text, count] of [['n'.repeat(10_000), 200], ['\u0001'.repeat(300), 800]] as const) {
      const user = `heidi with ${field} ${count}`
      const books = range(count).map((id) => ({ id: BigInt(id), title: 'small', [field]: text }))
      await storeBooks(url, user, books)
      t.equal((await (await as(user)).list()).json().length, count)
      for (const { calls, most } of kinds) {
        for (const call of calls()) {
          const rows = await (call as { returned: ReturnType<typeof database.read> }).returned
          const { length } = rows.flat().join('')
          t.ok(length <= most, `${user}: ${length} characters`)
        }
      }
    }
  }
})

t.test('changes between pages make no other book appear twice or be skipped', async (t) => {
  await storeBooks(url, 'walker', range(6).map((id) => ({ id: BigInt(10 * id), title: String(10 * id) })))
  const walker = await as('walker')
  const first = await walker.list('?limit=2')
  t.equal(first.headers.link, linkTo(2, 20, 'books'))
  for (const id of [-1, 15, 25]) await walker.create({ id, title: String(id) })
  for (const id of [0, 20, 40]) await walker.delete(id)
  const second = await walker.list(nextQuery(first))
  const third = await walker.list(nextQuery(second))
  const titles = [first, second, third].map((page) => page.json().map(({ title }: Book) => title))
  t.strictSame(titles, [['0', '10'], ['25', '30'], ['50']])
})

t.test('changes while a long page is sent make no other book appear twice or be skipped', async (t) => {
  const { readLong } = database
  for (const [change, total] of [
    ["insert into books select 'peggy', 2 * n + 1, 'new' from generate_series(2500, 3500) as n", 7001],
    ["delete from books where owner = 'peggy' and id between 5000 and 7000", 4999]
  ] as const) {
    await sql(url, `delete from books where owner = 'peggy';
      insert into books select 'peggy', 2 * n, 2 * n from generate_series(0, 5999) as n`)
    const peggy = await as('peggy')
    const changing = t.capture(database, 'readLong', async (statement: Statement, values: unknown[]) => {
      const rows = await readLong(statement, values)
      // The service has just found the end of the page. Change the books before the service reads the rest.
      if (statement.name === 'books-end') await sql(url, change)
      return rows
    })
    const response = await peggy.list('?limit=4000')
    changing.restore()
    t.equal(response.headers.link, linkTo(4000, 8000, 'books'))
    const rest = await peggy.list(nextQuery(response))
    const stored = await sql(url, "select title from books where owner = 'peggy' order by id")
    t.equal(stored.length, total)
    const isOld = ({ title }: Record<string, unknown>) => title !== 'new'
    t.strictSame([...response.json(), ...rest.json()].filter(isOld), stored.filter(isOld), change)
  }
})

t.test('the pages of a list check an expired token once', async (t) => {
  await sql(url, "insert into books (owner, id, title) select 'eve', id, '' from generate_series(1, 9000) id")
  const config = { WRITE_BATCH: undefined, MAX_QUEUED: 10, BODY_LIMIT: 1000 }
  const books = createGateway<Book>(database, booksTable, config, new MemoryBudget(10_000_000))
  let renewals = 0
  const identity: Identity = {
    user: 'eve',
    validUntil: performance.now(),
    async renew () {
      renewals++
      Object.assign(this, { validUntil: Infinity })
    }
  }
  const { rows: pages } = await books.list(identity, { limit: Infinity }, new PassThrough())
  t.ok((await Array.fromAsync(pages as AsyncIterable<unknown>)).length > 4)
  t.equal(renewals, 1)
})
