import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import pg from 'pg'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { createDatabase, sql, waitingForLocks } from '../support/database.ts'
import { startHeldUp } from '../support/held-up.ts'
import { shown, storePlants } from '../support/plants.ts'

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (answers: Array<{ statusCode: number }>) => answers.map(({ statusCode }) => statusCode)

const { app, as, database, listen, log, url } = await startApp(t)

t.test('plants come in ascending order of id, as numbers', async (t) => {
  const ids = [
    smallest, -100n, -99n, -10n, -9n, -1n,
    0n, 1n, 2n, 9n, 10n, 11n, 99n, 100n, 2n ** 53n, 2n ** 53n + 1n, largest
  ]
  await storePlants(url, 'alice', ids.toReversed().map((id) => ({ id, name: String(id) })))
  const answer = await (await as('alice')).list()
  t.strictSame(answer.json(), ids.map((id) => ({ name: String(id) })))
  t.match(answer.headers, { 'content-type': 'application/json' })
})

t.test('limit gives as many as there are, at most', async (t) => {
  const rows = Array.from({ length: 3 }, (_, index) => ({ id: BigInt(index), name: `plant ${index}` }))
  await storePlants(url, 'bob', rows)
  const bob = await as('bob')
  for (const [limit, count] of [[0, 0], [1, 1], [2, 2], [3, 3], [4, 3], [2147483647, 3]] as const) {
    t.strictSame((await bob.list(`?limit=${limit}`)).json(), shown(rows.slice(0, count)), `${limit}`)
  }
  t.strictSame((await bob.list()).json(), shown(rows), 'all when absent')
  t.equal((await bob.list('?limit=0')).body, '[]')
})

t.test('a user without plants has an empty list', async (t) => {
  t.equal((await (await as('carol')).list()).body, '[]')
})

t.test('an unknown parameter is ignored', async (t) => {
  t.equal((await (await as('bob')).list('?limits=1&offset=2&limit[]=1')).json().length, 3)
})

t.test('a short list does not wait for the page of a large plant', async (t) => {
  await storePlants(url, 'judy', [{ id: 1n, name: 'n'.repeat(10_000) }])
  await storePlants(url, 'kim', [{ id: 1n, name: 'Ivy' }])
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
  await storePlants(url, 'ivan', range(1000).map((index) => ({ id: BigInt(index), name: 'Ivy' })))
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
  const faults = log.map((line) => JSON.parse(line)).filter(({ level }) => /warn|error|fatal/.test(level))
  t.strictSame(faults, [])
})

// Each could be taken for another by a careless array, number, null or order.
const owners = [
  '1', '2', '01', '1 ', 'a,b', 'a', 'b', '{a,b}', '"a"', 'a"b', 'a\\', 'NULL', 'null', '{}', 'A', 'á', '$1'
]

/** What an owner has depends on the place: nothing, a little, too large a plant, more than a page. */
function plantsOf (owner: string, place: number) {
  const count = [0, 1, 20, 3, 700][place % 5] as number
  return range(count).map((id) => ({
    name: place % 5 === 3 && id === 1 ? `${owner} ${'n'.repeat(600)}` : `plant ${id}`,
    ...(id + place) % 2 === 0 && { tag: owner }
  }))
}

async function storeAll (url: string): Promise<void> {
  for (const [place, owner] of owners.entries()) {
    await storePlants(url, owner, plantsOf(owner, place).map((plant, id) => ({ id: BigInt(id), ...plant })))
  }
}

/** Whether the last lists were read by one statement. */
async function isJoinedIn (url: string): Promise<boolean> {
  const last = await sql(url, `select query from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database()`)
  return last.some(({ query }) => (query as string).includes('unnest'))
}

for (const [WRITE_BATCH, isJoined] of [['500', true], ['1', false]] as const) {
  const how = isJoined ? 'together' : 'one by one'
  t.test(`with WRITE_BATCH=${WRITE_BATCH} lists that wait are read ${how}, and never mix`, async (t) => {
    const { as, begin, letGo, url } = await startHeldUp(t, { WRITE_BATCH }, 'lock table plants')
    await storeAll(url)
    const users = await Promise.all(owners.map((owner) => as(owner)))
    // Their tokens are known from here on.
    await Promise.all(users.map((user) => user.list('?limit=0')))
    const limits = [undefined, 0, 1, 2, 19, 500, 501]
    const wanted = owners.flatMap((_, place) => limits.map((limit) => ({ place, limit })))
      // Neighbours are different owners, and each owner is there several times.
      .toSorted((a, b) => (a.place * 31 + (a.limit ?? 7)) % 17 - (b.place * 31 + (b.limit ?? 7)) % 17)
    const answers = await begin(...wanted.map(({ place, limit }) => () =>
      (users[place] as typeof users[0]).list(limit === undefined ? '' : `?limit=${limit}`)))
    await letGo()
    for (const [index, answer] of (await Promise.all(answers)).entries()) {
      const { place, limit } = wanted[index] as typeof wanted[0]
      const owner = owners[place] as string
      t.strictSame(answer.json(), plantsOf(owner, place).slice(0, limit), `${limit ?? 'all'} of ${owner}`)
    }
    await Promise.all(users.slice(0, 2).map((user) => user.list('?limit=1')))
    t.equal(await isJoinedIn(url), isJoined)
  })
}

t.test('lists that would have to wait behind MAX_QUEUED others are refused at once', async (t) => {
  const { begin, letGo, alice } = await startHeldUp(t, { MAX_QUEUED: '3' }, 'lock table plants')
  const answers = await begin(...range(5).map(() => () => alice.list()))
  t.match((await answers[4])?.json(), { error: 50302 })
  await letGo()
  t.strictSame(statuses(await Promise.all(answers)), [200, 200, 200, 200, 503])
})

t.test('where the database refuses the statement for several lists they are read one by one', async (t) => {
  const url = await createDatabase(t)
  await storeAll(url)
  // A type that only the statement for several lists names, and none of their values has.
  await sql(url, `create schema refusing;
    create type refusing.text as enum ();
    do $$ begin
      execute format('alter database %I set search_path = refusing, pg_catalog, public', current_database());
    end $$`)
  const { as, log } = await startApp(t, { DATABASE_URL: url })
  const users = await Promise.all(owners.map((owner) => as(owner)))
  // Their tokens are known from here on, so that the lists come together: more than one statement has room for.
  await Promise.all(users.map((user) => user.delete(-1)))
  const asked = [...users, ...users]
  const answers = (await Promise.all(asked.map((user) => user.list()))).slice(-users.length)
  for (const [place, owner] of owners.entries()) {
    t.strictSame(answers[place]?.json(), plantsOf(owner, place), owner)
  }
  t.strictSame(log.filter((line) => /warn|error/.test(JSON.parse(line).level)), [])
})

t.test('a list whose large plants are one page is read once, and sent whole', async (t) => {
  await sql(url, `insert into plants (owner, id, name) values
    ('lena', 1, 'Ivy'), ('lena', 2, repeat('n', 100000)),
    ('mia', 1, repeat('n', 100000)), ('mia', 2, 'Ivy')`)
  const { read } = database
  let longReads = 0
  let begunAt = NaN
  database.read = (statement, values, options) => {
    if (options?.isLong) longReads++
    else begunAt = performance.now()
    const counts = options?.isLong && !options.exemptFromRejection
    if (counts) t.ok(options.since as number <= begunAt, 'its waits are counted from the request on')
    return read(statement, values, options)
  }
  t.teardown(() => { database.read = read })
  const whole = await (await as('lena')).list()
  t.match(whole.headers, { 'content-length': String(whole.rawPayload.length) })
  t.equal(whole.json().length, 2)
  t.equal(longReads, 1)
  const cut = await (await as('mia')).list()
  t.equal(cut.headers['content-length'], undefined)
  t.equal(cut.json().length, 2)
  t.equal(longReads, 3)
})
