// Tests the pages of lists: those that a client requests, and those that the service reads and sends.
import { PassThrough } from 'node:stream'
import t, { type Test } from 'tap'
import type { Page } from '../../src/plants/pages.ts'
import { createPlants } from '../../src/plants/repository.ts'
import type { Identity } from '../../src/scheduling/batcher.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { cursorAt, linkTo, listOf, nextQuery, storePlants } from '../support/plants.ts'

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const range = (length: number) => Array.from({ length }, (_, index) => index)

const { app, as, database, url } = await startApp(t)

/** Passes the rows of each statement to `see`, until the test ends. */
function watchStatements (t: Test, see: (kind: 'read' | 'readLong', rows: unknown[]) => void): void {
  const { read, readLong } = database
  const watched = (kind: 'read' | 'readLong', run: typeof read): typeof read => async (...args) => {
    const rows = await run(...args)
    see(kind, rows)
    return rows
  }
  const long = readLong as typeof read
  Object.assign(database, { read: watched('read', read), readLong: watched('readLong', long) })
  t.teardown(() => Object.assign(database, { read, readLong }))
}

t.test('a list with a limit links to the next page while more plants follow', async (t) => {
  const ids = [smallest, smallest + 1n, -(2n ** 53n) - 1n, -1n, 0n, 1n, 2n ** 53n + 1n, largest - 1n, largest]
  const rows = ids.map((id) => ({ id, name: String(id) }))
  await storePlants(url, 'alice', rows.toReversed())
  await storePlants(url, 'bob', [{ id: 5n, name: 'of bob' }])
  const [alice, bob] = [await as('alice'), await as('bob')]
  for (const [start, id] of ids.entries()) {
    for (const limit of [...range(ids.length - start + 2), 2147483647]) {
      const response = await alice.list(`?limit=${limit}&after=${cursorAt(id)}`)
      const next = limit > 0 ? ids[start + limit] : undefined
      t.equal(response.body, listOf(rows.slice(start, start + limit)))
      const link = next === undefined ? undefined : linkTo(limit, next)
      t.equal(response.headers.link, link, `${limit} from ${id}`)
    }
    const rest = await alice.list(`?after=${cursorAt(id)}`)
    t.equal(rest.body, listOf(rows.slice(start)), 'without a limit: all that follow')
    t.notOk('link' in rest.headers)
  }
  t.equal((await alice.list()).body, listOf(rows))
  t.strictSame((await bob.list(`?after=${cursorAt(6)}`)).json(), [], 'another user has other plants')
  t.strictSame((await bob.list(`?limit=1&after=${cursorAt(-9)}`)).json(), [{ name: 'of bob' }])
})

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
// The service first reads 101 plants, then at most 2,000 at a time. Another statement reads a page that has a
// text of more than 256 bytes. The last plant of each list has the largest id.
for (const [kind, limits, plantAt] of [
  ['short', [1, 99, 100, 101, 102, 1999, 2000, 2001, 2099, 2100, 2101, 2102, 4728],
    (index) => ({ name: `${escaped} ${index}`, ...index % 2 === 0 && { tag: `tag ${index}` } })],
  ['small and large', [1, 27, 28, 100, 150], (index) => [
    { name: 'small', tag: 'small' }, { name: 'n'.repeat(256), tag: 't'.repeat(256) },
    { name: 'small', tag: 't'.repeat(257) }, { name: '🌵'.repeat(129), tag: escaped }, { name: 'small' },
    { name: 'n'.repeat(60_000), tag: '' }, { name: 'n'.repeat(300) }
  ][index % 7]],
  ['one large', [100, 149, 150, 151, 152, 2200],
    (index) => ({ name: index === 150 ? '\u0001'.repeat(30_000) : `plant ${index}` })]
] as Array<[kind: string, limits: number[], plantAt: (index: number) => { name: string, tag?: string }]>) {
  t.test(`a page of any size is complete and links to the next page: ${kind} plants`, async (t) => {
    const count = limits.at(-1) as number
    const idAt = (index: number) => largest - 3n * BigInt(count - 1 - index)
    const rows = range(count).map((index) => ({ id: idAt(index), ...plantAt(index) }))
    await storePlants(url, kind, rows)
    const user = await as(kind)
    for (const limit of [...limits, count - 1, count + 1]) {
      for (const start of [0, 7]) {
        const response = await user.list(`?limit=${limit}&after=${cursorAt(idAt(start))}`)
        const next = rows[start + limit]
        t.equal(response.headers.link, next && linkTo(limit, next.id), `${limit} from ${start}`)
        t.equal(response.body, listOf(rows.slice(start, start + limit)), `${limit} from ${start}`)
      }
    }
    const end = await user.list(`?after=${cursorAt(idAt(count - 101))}`)
    t.equal(end.body, listOf(rows.slice(-101)), 'a full page ends with the largest id')
    const whole = await user.list()
    t.equal(whole.body, listOf(rows))
    t.match(whole.headers, { 'content-type': 'application/json', link: undefined })
  })
}

t.test('the end of a very long page is found in steps', async (t) => {
  const count = 22_102
  await sql(url, `insert into plants select 'victor', id, 'n' from generate_series(1, ${count}) as id`)
  const victor = await as('victor')
  // After 2,101 plants the service looks for the end of the page in steps of 10,000 plants.
  for (const limit of [12_100, 12_101, 12_102, 22_101, 22_102, 50_000]) {
    const response = await victor.list(`?limit=${limit}`)
    t.equal(response.json().length, Math.min(limit, count))
    t.equal(response.headers.link, limit < count ? linkTo(limit, limit + 1) : undefined, `${limit}`)
  }
})

t.test('a Link costs no statement up to 2,000 plants, and HEAD reads only what its Link needs', async (t) => {
  await sql(url, "insert into plants select 'trent', id, 'n' from generate_series(1, 5000) as id")
  const { authorization, list } = await as('trent')
  let statements = 0
  watchStatements(t, () => { statements++ })
  const head = (query: string) =>
    app.inject({ method: 'HEAD', url: `/plants${query}`, headers: { authorization } })
  for (const [limit, ofGet, ofHead] of [
    [20, 1, 1], [100, 1, 1], [101, 2, 2], [2000, 2, 2], [2100, 2, 2], [2200, 4, 3]
  ] as const) {
    for (const [request, expected] of [[list, ofGet], [head, ofHead]] as const) {
      statements = 0
      const { headers: { link }, statusCode } = await request(`?limit=${limit}`)
      t.strictSame([statusCode, link, statements], [200, linkTo(limit, limit + 1), expected])
    }
  }
  statements = 0
  t.match(await head(''), { statusCode: 200, body: '', headers: { 'content-type': 'application/json' } })
  t.equal(statements, 1)
})

t.test('a page has a bounded size, however long a text of its plants is', async (t) => {
  let largestPage = { read: 0, readLong: 0 }
  watchStatements(t, (kind, rows) => {
    const length = JSON.parse(JSON.stringify(rows)).flat().join('').length
    largestPage[kind] = Math.max(largestPage[kind], length)
  })
  for (const field of ['name', 'tag']) {
    for (const [text, count] of [['n'.repeat(10_000), 200], ['\u0001'.repeat(300), 800]] as const) {
      largestPage = { read: 0, readLong: 0 }
      const user = `heidi with ${field} ${count}`
      const rows = range(count).map((id) => ({ id: BigInt(id), name: 'small', [field]: text }))
      await storePlants(url, user, rows)
      t.equal((await (await as(user)).list()).json().length, count)
      t.ok(largestPage.readLong <= 140_000, `${user}: ${largestPage.readLong} characters`)
      t.ok(largestPage.read < 17_000, `${user}: ${largestPage.read} characters`)
    }
  }
})

t.test('changes between pages make no other plant appear twice or be skipped', async (t) => {
  await storePlants(url, 'walker', range(6).map((id) => ({ id: BigInt(10 * id), name: String(10 * id) })))
  const walker = await as('walker')
  const first = await walker.list('?limit=2')
  t.equal(first.headers.link, linkTo(2, 20))
  for (const id of [-1, 15, 25]) await walker.create({ id, name: String(id) })
  for (const id of [0, 20, 40]) await walker.delete(id)
  const second = await walker.list(nextQuery(first))
  const third = await walker.list(nextQuery(second))
  const names = [first, second, third].map((page) => page.json().map(({ name }: { name: string }) => name))
  t.strictSame(names, [['0', '10'], ['25', '30'], ['50']])
})

t.test('changes while a long page is sent make no other plant appear twice or be skipped', async (t) => {
  const ids = range(6000).map((index) => BigInt(2 * index))
  for (const [kind, change, isChanged] of [
    ['created', `insert into plants
      select 'peggy', 2 * n + 1, 'new' from generate_series(2500, 3500) as n`, () => false],
    ['deleted', "delete from plants where owner = 'peggy' and id between 5000 and 7000",
      (id: bigint) => id >= 5000n && id <= 7000n]
  ] as const) {
    await sql(url, "delete from plants where owner = 'peggy'")
    await storePlants(url, 'peggy', ids.map((id) => ({ id, name: String(id) })))
    const peggy = await as('peggy')
    const { readLong } = database
    let isFound = false
    database.readLong = async (statement, values) => {
      // The service has just found the end of the page. Change the plants before the service reads the rest.
      if (isFound) {
        isFound = false
        await sql(url, change)
      }
      const rows = await readLong(statement, values)
      isFound ||= statement.name === 'plants-end'
      return rows
    }
    t.teardown(() => { database.readLong = readLong })
    const response = await peggy.list('?limit=4000')
    database.readLong = readLong
    t.equal(response.headers.link, linkTo(4000, 8000))
    const rest = await peggy.list(nextQuery(response))
    const names = [...response.json(), ...rest.json()].map(({ name }) => name)
    const stayed = ids.filter((id) => !isChanged(id)).map(String)
    t.strictSame(names.filter((name) => name !== 'new'), stayed, kind)
  }
})

t.test('the pages of a list check an expired token once', async (t) => {
  await sql(url, "insert into plants (owner, id, name) select 'eve', id, '' from generate_series(1, 9000) id")
  const budget = new MemoryBudget(10_000_000)
  const plants = createPlants(database, { WRITE_BATCH: undefined, MAX_QUEUED: 10, BODY_LIMIT: 1000 }, budget)
  let renewals = 0
  const identity: Identity = {
    user: 'eve',
    validUntil: performance.now(),
    async renew () {
      renewals++
      Object.assign(this, { validUntil: Infinity })
    }
  }
  const { plants: pages } = await plants.list(identity, { limit: Infinity }, new PassThrough())
  let listed = 0
  for await (const page of pages as AsyncIterable<Page>) listed += page.toPlants().length
  t.strictSame([listed, renewals], [9000, 1])
})
