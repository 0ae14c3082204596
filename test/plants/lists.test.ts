import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { TypeCompiler } from '@sinclair/typebox/compiler'
import { Kind, Type } from '@sinclair/typebox'
import pg from 'pg'
import t from 'tap'
import { PlantSchema } from '../../src/plants/schemas.ts'
import { startApp } from '../support/app.ts'
import { sql, waitingForLocks } from '../support/database.ts'

const isList = TypeCompiler.Compile(Type.Array(PlantSchema, { additionalProperties: false }))
const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]

const { app, as, database, listen, log, url } = await startApp(t)

interface Row { id: bigint, name: string, tag?: string }

/** Stores plants past the service: the list is what is tested here. */
async function store (owner: string, rows: Row[]): Promise<void> {
  const columns = [rows.map(({ id }) => id), rows.map(({ name }) => name), rows.map(({ tag }) => tag)]
  await sql(url, 'insert into plants (owner, id, name, tag) select $1, * from unnest($2::bigint[], $3::text[], $4::text[])', [owner, ...columns])
}

const shown = (rows: Row[]) => rows.map(({ name, tag }) => ({ name, ...tag !== undefined && { tag } }))

t.test('plants come in ascending order of id, as numbers', async (t) => {
  const ids = [smallest, -100n, -99n, -10n, -9n, -1n, 0n, 1n, 2n, 9n, 10n, 11n, 99n, 100n, 2n ** 53n, 2n ** 53n + 1n, largest]
  await store('alice', ids.toReversed().map((id) => ({ id, name: String(id) })))
  const answer = await (await as('alice')).list()
  t.strictSame(answer.json(), ids.map((id) => ({ name: String(id) })))
  t.match(answer.headers, { 'content-type': 'application/json' })
})

t.test('limit gives as many as there are, at most', async (t) => {
  const rows = Array.from({ length: 3 }, (_, index) => ({ id: BigInt(index), name: `plant ${index}` }))
  await store('bob', rows)
  const bob = await as('bob')
  for (const [limit, count] of [['', 3], ['?limit=0', 0], ['?limit=1', 1], ['?limit=2', 2], ['?limit=3', 3], ['?limit=4', 3], ['?limit=2147483647', 3]] as const) {
    t.strictSame((await bob.list(limit)).json(), shown(rows.slice(0, count)), limit)
  }
  t.equal((await bob.list('?limit=0')).body, '[]')
})

t.test('a user without plants has an empty list', async (t) => {
  t.equal((await (await as('carol')).list()).body, '[]')
})

t.test('an unknown parameter is ignored', async (t) => {
  t.equal((await (await as('bob')).list('?limits=1&offset=2&limit[]=1')).json().length, 3)
})

// Around the 500 plants of a page.
for (const count of [499, 500, 501, 1000, 1001, 1728]) {
  t.test(`a list of ${count} is whole and in order, as is every beginning of it`, async (t) => {
    const owner = `owner of ${count}`
    const rows = Array.from({ length: count }, (_, index) => ({ id: BigInt(index * 7 - 5000), name: `plant ${index}`, ...index % 2 === 0 && { tag: `tag ${index}` } }))
    await store(owner, rows)
    const user = await as(owner)
    const answer = await user.list()
    t.equal(answer.statusCode, 200)
    t.ok(isList.Check(answer.json()))
    t.strictSame(answer.json(), shown(rows))
    t.match(answer.headers, { 'content-type': 'application/json' })
    for (const limit of [1, 499, 500, 501, 999, 1000, 1001, count]) {
      t.strictSame((await user.list(`?limit=${limit}`)).json(), shown(rows.slice(0, limit)), `limit ${limit}`)
    }
    const head = await app.inject({ method: 'HEAD', url: '/plants', headers: { authorization: user.authorization } })
    t.strictSame({ status: head.statusCode, body: head.body }, { status: 200, body: '' })
  })
}

t.test('the page may end with the largest id', async (t) => {
  for (const count of [500, 1000]) {
    const owner = `dave with ${count}`
    const rows = Array.from({ length: count }, (_, index) => ({ id: largest - BigInt(count - 1 - index), name: `plant ${index}` }))
    await store(owner, rows)
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
    ][index % 5] as Row
  })
  await store('erin', rows)
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
    await store(kind, rows)
    t.strictSame((await (await as(kind)).list()).json(), shown(rows))
  })
}

t.test('plants just small enough for a page', async (t) => {
  const rows = [{ id: 1n, name: 'n'.repeat(512) }, { id: 2n, name: '', tag: 't'.repeat(512) }, { id: 3n, name: '🌵'.repeat(128), tag: '' }]
  await store('frank', rows)
  t.strictSame((await (await as('frank')).list()).json(), shown(rows))
})

t.test('whatever JSON has to escape comes back from every part of a list', async (t) => {
  const name = '"\\/\b\f\n\r\t\u0001\u001f\u007f\u0085\u2028\u2029 </script> 🌵 é \u{10ffff}'
  const rows = Array.from({ length: 1200 }, (_, index) => ({ id: BigInt(index), name: `${name} ${index}`, tag: index % 3 === 0 ? name : '' }))
  await store('grace', rows)
  t.strictSame((await (await as('grace')).list()).json(), shown(rows))
})

const texts = Object.entries(PlantSchema.properties).filter(([, { [Kind]: kind }]) => kind === 'UnicodeText').map(([field]) => field)

for (const field of texts) {
  t.test(`of a list long by its ${field} no page stands before short lists, and none is larger than a bound`, async (t) => {
    const heidi = await as(`heidi with a ${field}`)
    const plants = Array.from({ length: 100 }, (_, id) => ({ id, name: 'small', [field]: 'n'.repeat(10_000) }))
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

t.test('a short list does not wait for the page of a large plant', async (t) => {
  await store('judy', [{ id: 1n, name: 'n'.repeat(10_000) }])
  await store('kim', [{ id: 1n, name: 'Ivy' }])
  const [judy, kim] = [await as('judy'), await as('kim')]
  // Their tokens are known from here on: their lists come in the order in which they are asked for.
  for (const user of [judy, kim]) await user.list()
  const { read } = database
  const held = Promise.withResolvers<void>()
  database.read = async (statement, values, options) => {
    if (options?.isLong) await held.promise
    return read(statement, values, options)
  }
  t.teardown(() => { database.read = read })
  // The first goes alone, the others together.
  const pairs = Array.from({ length: 20 }, () => ({ large: judy.list(), short: kim.list() }))
  for (const { short } of pairs) t.strictSame((await short).json(), [{ name: 'Ivy' }])
  held.resolve()
  for (const { large } of pairs) t.equal((await large).json().length, 1)
})

t.test('a reader who leaves before a long list begins is no fault of the service', async (t) => {
  await store('ivan', Array.from({ length: 1000 }, (_, index) => ({ id: BigInt(index), name: 'Ivy' })))
  const ivan = await as('ivan')
  const { hostname, port } = new URL(await listen())
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants')
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const caller = connect(Number(port), hostname)
  caller.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${ivan.authorization}\r\n\r\n`)
  const [socket] = await accepted
  while ((await client.query(waitingForLocks)).rowCount === 0);
  const closed = new Promise((resolve) => socket.once('close', resolve))
  caller.resetAndDestroy()
  await closed
  await client.query('commit')
  t.equal((await ivan.list('?limit=1')).statusCode, 200)
  t.strictSame(log.map((line) => JSON.parse(line)).filter(({ level }) => /warn|error|fatal/.test(level)), [])
})
