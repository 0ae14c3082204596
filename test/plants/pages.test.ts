import { TypeCompiler } from '@sinclair/typebox/compiler'
import { Kind, Type } from '@sinclair/typebox'
import t from 'tap'
import { PlantSchema } from '../../src/plants/schemas.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { shown, storePlants, type StoredPlant } from '../support/plants.ts'
import { exchange } from '../support/raw.ts'

const isList = TypeCompiler.Compile(Type.Array(PlantSchema, { additionalProperties: false }))
const largest = 2n ** 63n - 1n

const { app, as, database, listen, url } = await startApp(t)

// The service first reads 101 plants, then at most 2,000 at a time. So most counts are near 101 and 2,101.
for (const count of [99, 100, 101, 102, 2100, 2101, 2102, 4728]) {
  t.test(`a list of ${count} plants is complete and in order, also with a limit`, async (t) => {
    const username = `user with ${count}`
    const rows = Array.from({ length: count }, (_, index) => ({
      id: BigInt(index * 7 - 5000),
      name: `plant ${index}`,
      ...index % 2 === 0 && { tag: `tag ${index}` }
    }))
    await storePlants(url, username, rows)
    const user = await as(username)
    const response = await user.list()
    t.equal(response.statusCode, 200)
    t.ok(isList.Check(response.json()))
    t.strictSame(response.json(), shown(rows))
    t.match(response.headers, { 'content-type': 'application/json' })
    for (const limit of [1, 99, 100, 101, 102, 2100, 2101, 2102, count]) {
      t.strictSame((await user.list(`?limit=${limit}`)).json(), shown(rows.slice(0, limit)), `limit ${limit}`)
    }
    const { authorization } = user
    const head = await app.inject({ method: 'HEAD', url: '/plants', headers: { authorization } })
    t.strictSame({ status: head.statusCode, body: head.body }, { status: 200, body: '' })
  })
}

t.test('a page may end with the largest id', async (t) => {
  for (const count of [101, 2101]) {
    const username = `dave with ${count}`
    const rows = Array.from({ length: count }, (_, index) =>
      ({ id: largest - BigInt(count - 1 - index), name: `plant ${index}` }))
    await storePlants(url, username, rows)
    t.strictSame((await (await as(username)).list()).json(), shown(rows))
  }
})

// The service uses a different statement for a page with a text of more than 256 bytes.
t.test('plants too large for a short page appear at their places in the list', async (t) => {
  const large = [0, 1, 50, 98, 249, 250, 499, 500, 501, 504, 749, 1248, 1249]
  const rows = Array.from({ length: 1250 }, (_, index) => {
    const id = BigInt(index)
    if (!large.includes(index)) return { id, name: `plant ${index}`, tag: `tag ${index}` }
    return [
      { id, name: 'n'.repeat(257), tag: 'small' },
      { id, name: 'small', tag: 't'.repeat(257) },
      { id, name: 'n'.repeat(257), tag: 't'.repeat(257) },
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
  'a name': { name: 'n'.repeat(257) },
  'a name of few characters': { name: '🌵'.repeat(129) },
  'a tag': { name: '', tag: 't'.repeat(257) }
})) {
  t.test(`a plant that is large by ${kind} is listed between small ones`, async (t) => {
    const rows = [{ id: 1n, name: 'before', tag: 'small' }, { id: 2n, ...plant }, { id: 3n, name: 'after' }]
    await storePlants(url, kind, rows)
    t.strictSame((await (await as(kind)).list()).json(), shown(rows))
  })
}

t.test('plants at the size limit of a short page are listed', async (t) => {
  const rows = [
    { id: 1n, name: 'n'.repeat(256) },
    { id: 2n, name: '', tag: 't'.repeat(256) },
    { id: 3n, name: '🌵'.repeat(64), tag: '' }
  ]
  await storePlants(url, 'frank', rows)
  t.strictSame((await (await as('frank')).list()).json(), shown(rows))
})

t.test('characters that JSON must escape come back unchanged from every page of a list', async (t) => {
  const name = '"\\/\b\f\n\r\t\u0001\u001f\u007f\u0085\u2028\u2029 </script> 🌵 é \u{10ffff}'
  const rows = Array.from({ length: 1200 }, (_, index) =>
    ({ id: BigInt(index), name: `${name} ${index}`, tag: index % 3 === 0 ? name : '' }))
  await storePlants(url, 'grace', rows)
  t.strictSame((await (await as('grace')).list()).json(), shown(rows))
})

const textFields = Object.entries(PlantSchema.properties)
  .filter(([, { [Kind]: kind }]) => kind === 'UnicodeText').map(([field]) => field)

for (const field of textFields) {
  for (const [kind, text] of Object.entries({ plain: 'n'.repeat(10_000), escaped: '\u0001'.repeat(300) })) {
    t.test(`a page has a bounded size, however long the ${field} of its plants is: ${kind}`, async (t) => {
      const username = `heidi with ${kind} ${field}`
      const rows = Array.from({ length: 2500 }, (_, id) => ({ id: BigInt(id), name: 'small', [field]: text }))
      await storePlants(url, username, kind === 'plain' ? rows.slice(0, 200) : rows)
      const heidi = await as(username)
      const { read, readLong } = database
      let [largest, largestOfShort] = [0, 0]
      const sizeOf = (rows: unknown) => JSON.stringify(rows).length
      database.read = async (...args) => {
        const rows = await read(...args)
        largestOfShort = Math.max(largestOfShort, sizeOf(rows))
        return rows
      }
      database.readLong = async (...args) => {
        const rows = await readLong(...args)
        largest = Math.max(largest, JSON.parse(JSON.stringify(rows)).flat().join('').length)
        return rows
      }
      t.teardown(() => Object.assign(database, { read, readLong }))
      t.equal((await heidi.list()).json().length, kind === 'plain' ? 200 : 2500)
      t.ok(largest <= 140_000, `${largest} characters`)
      t.ok(largestOfShort < 17_000, `${largestOfShort} characters`)
    })
  }
}

t.test('HEAD of a long list reads only its first page', async (t) => {
  await sql(url, "insert into plants select 'reader', id, 'n' from generate_series(1, 5000) as id")
  const { authorization } = await as('reader')
  const request = (method: string) => [
    `${method} /plants HTTP/1.1`, 'Host: x', `Authorization: ${authorization}`, 'Connection: close', '', ''
  ].join('\r\n')
  const { readLong } = database
  let statements = 0
  database.readLong = (...args) => {
    statements++
    return readLong(...args)
  }
  t.teardown(() => { database.readLong = readLong })
  const address = await listen()
  const [get] = await exchange(address, [request('GET')])
  const wholeList = statements
  const [head] = await exchange(address, [request('HEAD')], { heads: [0] })
  t.match(head, { status: 200, headers: { 'content-type': get?.headers['content-type'] } })
  t.equal(statements - wholeList, 0)
  t.ok(wholeList > 1)
})

t.test('a list of several pages is complete and in order', async (t) => {
  await sql(url, `insert into plants (owner, id, name)
    select 'alice', id * 3 - 20000, 'plant ' || id from generate_series(1, 20001) id`)
  const expected = Array.from({ length: 20_001 }, (_, index) => ({ name: `plant ${index + 1}` }))
  const alice = await as('alice')
  const queries = ['', '?limit=101', '?limit=7500', '?limit=20000']
  const [whole, ...parts] = await Promise.all(queries.map((query) => alice.list(query)))
  t.strictSame(whole?.json(), expected)
  for (const part of parts) {
    const plants = part.json() as unknown[]
    t.strictSame(plants, expected.slice(0, plants.length))
  }
  t.strictSame(parts.map((part) => part.json().length), [101, 7500, 20_000])
})
