import { setTimeout as delay } from 'node:timers/promises'
import { TypeCompiler } from '@sinclair/typebox/compiler'
import { Kind, Type } from '@sinclair/typebox'
import t from 'tap'
import { createPageReader } from '../../src/plants/page-reader.ts'
import type { Rest } from '../../src/plants/pages.ts'
import { PlantSchema } from '../../src/plants/schemas.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { shown, storePlants, type StoredPlant } from '../support/plants.ts'
import { exchange } from '../support/raw.ts'

const isList = TypeCompiler.Compile(Type.Array(PlantSchema, { additionalProperties: false }))
const largest = 2n ** 63n - 1n

const { app, as, database, listen, url } = await startApp(t)

// Around the 500 plants of a page.
for (const count of [499, 500, 501, 1000, 1001, 1728]) {
  t.test(`a list of ${count} is whole and in order, as is every beginning of it`, async (t) => {
    const owner = `owner of ${count}`
    const rows = Array.from({ length: count }, (_, index) => ({
      id: BigInt(index * 7 - 5000),
      name: `plant ${index}`,
      ...index % 2 === 0 && { tag: `tag ${index}` }
    }))
    await storePlants(url, owner, rows)
    const user = await as(owner)
    const answer = await user.list()
    t.equal(answer.statusCode, 200)
    t.ok(isList.Check(answer.json()))
    t.strictSame(answer.json(), shown(rows))
    t.match(answer.headers, { 'content-type': 'application/json' })
    for (const limit of [1, 499, 500, 501, 999, 1000, 1001, count]) {
      t.strictSame((await user.list(`?limit=${limit}`)).json(), shown(rows.slice(0, limit)), `limit ${limit}`)
    }
    const { authorization } = user
    const head = await app.inject({ method: 'HEAD', url: '/plants', headers: { authorization } })
    t.strictSame({ status: head.statusCode, body: head.body }, { status: 200, body: '' })
  })
}

t.test('the page may end with the largest id', async (t) => {
  for (const count of [500, 1000]) {
    const owner = `dave with ${count}`
    const rows = Array.from({ length: count }, (_, index) =>
      ({ id: largest - BigInt(count - 1 - index), name: `plant ${index}` }))
    await storePlants(url, owner, rows)
    t.strictSame((await (await as(owner)).list()).json(), shown(rows))
  }
})

// With a name or a tag above 512 bytes, their page has a bound on its bytes.
t.test('plants too large for a page stand in the list where they belong', async (t) => {
  const large = [0, 1, 50, 98, 249, 250, 499, 500, 501, 504, 749, 1248, 1249]
  const rows = Array.from({ length: 1250 }, (_, index) => {
    const id = BigInt(index)
    if (!large.includes(index)) return { id, name: `plant ${index}`, tag: `tag ${index}` }
    // By its name, its tag, both or the bytes of few characters.
    return [
      { id, name: 'n'.repeat(513), tag: 'small' },
      { id, name: 'small', tag: 't'.repeat(513) },
      { id, name: 'n'.repeat(513), tag: 't'.repeat(513) },
      { id, name: '🌵'.repeat(129) },
      { id, name: 'n'.repeat(100_000), tag: '' }
    ][index % 5] as StoredPlant
  })
  await storePlants(url, 'erin', rows)
  const erin = await as('erin')
  t.strictSame((await erin.list()).json(), shown(rows))
  for (const limit of [1, 2, 3, 50, 51, 99, 250, 251, 499, 500, 501, 749, 750, 751, 1249]) {
    t.strictSame((await erin.list(`?limit=${limit}`)).json(), shown(rows.slice(0, limit)), `limit ${limit}`)
  }
})

for (const [kind, plant] of Object.entries({
  'a name': { name: 'n'.repeat(513) },
  'a name of few characters': { name: '🌵'.repeat(129) },
  'a tag': { name: '', tag: 't'.repeat(513) }
})) {
  t.test(`one large plant by ${kind} among small ones`, async (t) => {
    const rows = [{ id: 1n, name: 'before', tag: 'small' }, { id: 2n, ...plant }, { id: 3n, name: 'after' }]
    await storePlants(url, kind, rows)
    t.strictSame((await (await as(kind)).list()).json(), shown(rows))
  })
}

t.test('plants just small enough for a page', async (t) => {
  const rows = [
    { id: 1n, name: 'n'.repeat(512) },
    { id: 2n, name: '', tag: 't'.repeat(512) },
    { id: 3n, name: '🌵'.repeat(128), tag: '' }
  ]
  await storePlants(url, 'frank', rows)
  t.strictSame((await (await as('frank')).list()).json(), shown(rows))
})

t.test('whatever JSON has to escape comes back from every part of a list', async (t) => {
  const name = '"\\/\b\f\n\r\t\u0001\u001f\u007f\u0085\u2028\u2029 </script> 🌵 é \u{10ffff}'
  const rows = Array.from({ length: 1200 }, (_, index) =>
    ({ id: BigInt(index), name: `${name} ${index}`, tag: index % 3 === 0 ? name : '' }))
  await storePlants(url, 'grace', rows)
  t.strictSame((await (await as('grace')).list()).json(), shown(rows))
})

const texts = Object.entries(PlantSchema.properties)
  .filter(([, { [Kind]: kind }]) => kind === 'UnicodeText').map(([field]) => field)

for (const field of texts) {
  const title = 'no page stands before short lists, and none is larger than a bound'
  t.test(`of a list long by its ${field} ${title}`, async (t) => {
    const heidi = await as(`heidi with a ${field}`)
    const plants = Array.from({ length: 100 }, (_, id) =>
      ({ id, name: 'small', [field]: 'n'.repeat(10_000) }))
    await Promise.all(plants.map((plant) => heidi.create(plant)))
    const { read } = database
    let [largest, largestOfShort] = [0, 0]
    database.read = async (statement, values, options) => {
      const rows = await read(statement, values, options)
      const size = JSON.stringify(rows).length
      if (options?.isLong) largest = Math.max(largest, size)
      else largestOfShort = Math.max(largestOfShort, size)
      return rows
    }
    t.teardown(() => { database.read = read })
    t.strictSame((await heidi.list()).json(), plants.map(({ id, ...plant }) => plant))
    t.ok(largest < 100_000, `${largest} characters`)
    t.ok(largestOfShort < 10_000, `${largestOfShort} characters`)
  })
}

t.test('HEAD of a long list reads no more of it than it takes to answer', async (t) => {
  await sql(url, "insert into plants select 'reader', id, 'n' from generate_series(1, 5000) as id")
  const { authorization } = await as('reader')
  const request = (method: string) => [
    `${method} /plants HTTP/1.1`, 'Host: x', `Authorization: ${authorization}`, 'Connection: close', '', ''
  ].join('\r\n')
  const { read } = database
  let statements = 0
  database.read = (...args) => {
    statements++
    return read(...args)
  }
  t.teardown(() => { database.read = read })
  const address = await listen()
  const [get] = await exchange(address, [request('GET')])
  const wholeList = statements
  const [head] = await exchange(address, [request('HEAD')], { heads: [0] })
  t.match(head, { status: 200, headers: { 'content-type': get?.headers['content-type'] } })
  t.equal(statements - wholeList, 1)
  t.ok(wholeList > 1)
})

/** Pages without end, and how large they were asked for. */
function startPace (readMs: number, isFull = () => true) {
  const asked: number[] = []
  const pagesAfter = createPageReader(async (_owner: string, rest: Rest, size: number) => {
    asked.push(size)
    if (readMs > 0) await delay(readMs)
    return { plants: Array.from({ length: isFull() ? size : 7 }, () => ({ name: 'Ivy' })), bytes: 0, rest }
  })
  return { asked, begin: () => pagesAfter('alice', { from: '1', limit: Infinity }) }
}

t.test('pages grow for a reader who takes each before the next could have been read', async (t) => {
  const { asked, begin } = startPace(200)
  const pages = begin()
  for (let count = 0; count < 6; count++) await pages.next()
  t.strictSame(asked, [500, 1000, 2000, 4000, 4000, 4000, 4000], 'the last is read ahead')
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
