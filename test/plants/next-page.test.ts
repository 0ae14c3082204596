import fc from 'fast-check'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { cursorAt, linkTo, nextQuery, shown, storePlants, type StoredPlant } from '../support/plants.ts'

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const range = (length: number) => Array.from({ length }, (_, index) => index)

const { app, as, database, url } = await startApp(t)
type Client = Awaited<ReturnType<typeof as>>

/** Returns the plants of all pages. Throws if a page other than the last does not have `limit` plants. */
async function readAll (client: Client, limit: number): Promise<unknown[]> {
  const plants: unknown[] = []
  for (let query: string | undefined = `?limit=${limit}`; query !== undefined;) {
    const response = await client.list(query)
    query = nextQuery(response)
    const page = response.json()
    if (query !== undefined && page.length !== limit) throw new Error(`${page.length} instead of ${limit}`)
    plants.push(...page)
  }
  return plants
}

t.test('a list with a limit links to the next page while more plants follow', async (t) => {
  const ids = [smallest, smallest + 1n, -(2n ** 53n) - 1n, -1n, 0n, 1n, 2n ** 53n + 1n, largest - 1n, largest]
  const rows = ids.map((id) => ({ id, name: String(id) }))
  await storePlants(url, 'alice', rows)
  await storePlants(url, 'bob', [{ id: 5n, name: 'of bob' }])
  const [alice, bob] = [await as('alice'), await as('bob')]
  for (const [start, id] of ids.entries()) {
    for (const limit of range(ids.length - start + 2)) {
      const response = await alice.list(`?limit=${limit}&after=${cursorAt(id)}`)
      const end = start + limit
      const link = limit > 0 && end < ids.length ? linkTo(limit, ids[end] as bigint) : undefined
      t.strictSame(response.json(), shown(rows.slice(start, end)))
      t.equal(response.headers.link, link, `${limit} from ${id}`)
    }
    const rest = await alice.list(`?after=${cursorAt(id)}`)
    t.strictSame(rest.json(), shown(rows.slice(start)), 'without a limit: all that follow')
    t.notOk('link' in rest.headers)
  }
  for (const limit of [1, 2, 3, 8, 9, 2147483647]) {
    t.strictSame(await readAll(alice, limit), shown(rows), `pages of ${limit}`)
  }
  t.notOk('link' in (await alice.list()).headers)
  t.strictSame((await bob.list(`?after=${cursorAt(6)}`)).json(), [], 'another user has other plants')
  t.strictSame((await bob.list(`?limit=1&after=${cursorAt(-9)}`)).json(), [{ name: 'of bob' }])
})

t.test('HEAD has the same link as GET', async (t) => {
  await sql(url, "insert into plants select 'heidi', id, 'n' from generate_series(1, 3000) as id")
  const { authorization, list } = await as('heidi')
  for (const limit of [20, 2500, 3000]) {
    const query = `?limit=${limit}`
    const head = await app.inject({ method: 'HEAD', url: `/plants${query}`, headers: { authorization } })
    t.equal(head.statusCode, 200)
    t.equal(head.headers.link, limit === 3000 ? undefined : linkTo(limit, limit + 1))
    t.equal((await list(query)).headers.link, head.headers.link)
  }
})

t.test('every other value of after is rejected', async (t) => {
  const carol = await as('carol')
  const message = 'after must be the value from the Link header of a list, given once.'
  const cursor = cursorAt(42)
  const encoded = (text: string) => Buffer.from(text).toString('base64url')
  const rejected = [
    '', '=', '=42', '=-1', '=9223372036854775807', '=12345678', '=123456789012', `=${cursor}=`,
    `=${cursor}%3D`, `=${cursor}A`, `=${cursor.slice(0, -1)}N`, `=%20${cursor}`, `=${cursor}%20`,
    `=${cursor}%00`, `=${cursor}%0A`, `=${cursor.toLowerCase()}`, `=${cursor}&after=${cursor}`,
    `=${cursor}&after`, '=%2B', '=null', '=[]',
    ...['', '-0', '042', '+42', '4.2', '4e2', ' 42', '42\0', 'x', '\uff14', String(largest + 1n),
      String(smallest - 1n), '9'.repeat(5000)].map((text) => `=${encoded(text)}`)
  ]
  for (const value of rejected) {
    isError(t, await carol.list(`?after${value}`), 40016, message, value.slice(0, 40))
    isError(t, await carol.list(`?limit=1&after${value}`), 40016, message, value.slice(0, 40))
  }
  t.equal((await carol.list(`?after=${encodeURIComponent(cursor).replace('N', '%4E')}`)).statusCode, 200)
})

// The limits test the boundaries of the service's reads: first 101 plants, then at most 2,000 at a time.
for (const [kind, limits, textOf] of [
  ['short', [1, 99, 100, 101, 102, 1999, 2000, 2001, 2099, 2100, 2101, 2102, 4000, 4728],
    (index: number) => `plant ${index}`],
  ['large', [1, 2, 6, 20, 27, 28, 29, 41, 42, 43, 75, 99, 100],
    (index: number) => 'n'.repeat(index % 7 === 0 ? 60_000 : 300)],
  ['short and large', [100, 101, 149, 150, 151, 152, 2000, 2200], (index: number) =>
    index === 150 ? 'n'.repeat(130_000) : `plant ${index}`]
] as const) {
  t.test(`a page of any size links to the next one: ${kind} plants`, async (t) => {
    const count = limits.at(-1) as number
    const rows = range(count).map((index) => ({ id: BigInt(index * 3 - 5000), name: textOf(index) }))
    await storePlants(url, kind, rows)
    const user = await as(kind)
    for (const limit of [...limits, count - 1, count + 1, 2147483647]) {
      for (const start of [0, 7]) {
        const response = await user.list(`?limit=${limit}&after=${cursorAt(start * 3 - 5000)}`)
        const next = rows[start + limit]
        t.equal(response.headers.link, next && linkTo(limit, next.id), `${limit} from ${start}`)
        t.strictSame(response.json(), shown(rows.slice(start, start + limit)), `${limit} from ${start}`)
      }
    }
    for (const limit of [99, 2100]) {
      t.strictSame(await readAll(user, limit), shown(rows), `pages of ${limit}`)
    }
  })
}

t.test('the end of a very long page is found in steps', async (t) => {
  const count = 32_101
  await sql(url, `insert into plants select 'victor', id, 'n' from generate_series(1, ${count}) as id`)
  const victor = await as('victor')
  // After 2,101 plants the service looks for the end of the page in steps of 10,000 plants.
  for (const limit of [12_100, 12_101, 12_102, 22_101, 32_099, 32_100, 32_101, 50_000]) {
    const response = await victor.list(`?limit=${limit}`)
    t.equal(response.json().length, Math.min(limit, count))
    t.equal(response.headers.link, limit < count ? linkTo(limit, limit + 1) : undefined, `${limit}`)
  }
})

t.test('whether more plants follow costs no statement, up to 2,000 plants', async (t) => {
  await sql(url, "insert into plants select 'trent', id, 'n' from generate_series(1, 2500) as id")
  const trent = await as('trent')
  const { read, readLong } = database
  let statements = 0
  const count = (run: typeof read): typeof read => (...args) => {
    statements++
    return run(...args)
  }
  Object.assign(database, { read: count(read), readLong: count(readLong as typeof read) })
  t.teardown(() => Object.assign(database, { read, readLong }))
  const expectations = { 20: 1, 99: 1, 100: 1, 101: 2, 2000: 2, 2100: 2, 2200: 4 }
  for (const [limit, expected] of Object.entries(expectations)) {
    statements = 0
    t.ok('link' in (await trent.list(`?limit=${limit}`)).headers)
    t.equal(statements, expected, `limit ${limit}`)
  }
})

const id = fc.oneof(
  fc.constantFrom(smallest, smallest + 1n, -1n, 0n, 1n, 2n ** 53n, 2n ** 53n + 1n, largest - 1n, largest),
  fc.bigInt({ min: -8n, max: 8n }),
  fc.bigInt({ min: smallest, max: largest })
)
const change = fc.record({ id, kind: fc.constantFrom('create', 'delete') })
const step = fc.record({ limit: fc.integer({ min: 1, max: 5 }), changes: fc.array(change, { maxLength: 4 }) })

t.test('changes between pages make no other plant appear twice or be skipped', async (t) => {
  let run = 0
  await fc.assert(fc.asyncProperty(
    fc.uniqueArray(id, { maxLength: 25 }), fc.array(step, { minLength: 1, maxLength: 30 }),
    async (ids, steps) => {
      const username = `walker ${run++}`
      await storePlants(url, username, ids.map((id) => ({ id, name: String(id) })))
      const client = await as(username)
      const model = new Set(ids)
      const unchanged = new Set(ids)
      const walked: bigint[] = []
      let query: string | undefined = '?'
      for (let turn = 0; query !== undefined; turn++) {
        const { limit, changes } = steps[turn % steps.length] as typeof steps[0]
        const response = await client.list(query.replace(/\?(limit=\d+&?)?/, `?limit=${limit}&`))
        const page: bigint[] = response.json().map(({ name }: StoredPlant) => BigInt(name))
        if (page.length > limit) throw new Error(`${page.length} plants with limit ${limit}`)
        query = nextQuery(response)
        const following = [...model].filter((id) => id > (page.at(-1) ?? largest))
        const hasNext = query !== undefined
        if (hasNext !== (following.length > 0)) throw new Error(`${query} before ${following}`)
        for (const id of page) if (!model.has(id)) throw new Error(`${id} does not exist`)
        walked.push(...page)
        for (const { id, kind } of changes) {
          unchanged.delete(id)
          const { statusCode } = kind === 'create'
            ? await client.create(`{"id":${id},"name":"${id}"}`)
            : await client.delete(id)
          const isExpected = (kind === 'create') === !model.has(id) ? statusCode < 300 : statusCode >= 400
          if (!isExpected) throw new Error(`${kind} ${id}: ${statusCode}`)
          if (kind === 'create') model.add(id)
          else model.delete(id)
        }
      }
      const ascending = walked.every((id, index) => index === 0 || id > (walked[index - 1] as bigint))
      if (!ascending) throw new Error(`not once and in order: ${walked}`)
      const skipped = [...unchanged].filter((id) => !walked.includes(id))
      if (skipped.length > 0) throw new Error(`skipped: ${skipped}`)
    }
  ), { numRuns: 30 })
  t.ok(run >= 30)
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
