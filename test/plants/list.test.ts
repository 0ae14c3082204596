import { once } from 'node:events'
import { connect, type Socket } from 'node:net'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { createDatabase, sql, waitingForLocks } from '../support/database.ts'
import { startBlocked } from '../support/blocked.ts'
import { cursorAt, shown, storePlants } from '../support/plants.ts'

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)

const { app, as, database, listen, log, url } = await startApp(t)

t.test('plants are listed in ascending numeric order of id', async (t) => {
  const ids = [
    smallest, -100n, -99n, -10n, -9n, -1n,
    0n, 1n, 2n, 9n, 10n, 11n, 99n, 100n, 2n ** 53n, 2n ** 53n + 1n, largest
  ]
  await storePlants(url, 'alice', ids.toReversed().map((id) => ({ id, name: String(id) })))
  const response = await (await as('alice')).list()
  t.strictSame(response.json(), ids.map((id) => ({ name: String(id) })))
  t.match(response.headers, { 'content-type': 'application/json' })
})

t.test('a list has at most as many plants as limit says', async (t) => {
  const rows = Array.from({ length: 3 }, (_, index) => ({ id: BigInt(index), name: `plant ${index}` }))
  await storePlants(url, 'bob', rows)
  const bob = await as('bob')
  for (const [limit, count] of [[0, 0], [1, 1], [2, 2], [3, 3], [4, 3], [2147483647, 3]] as const) {
    t.strictSame((await bob.list(`?limit=${limit}`)).json(), shown(rows.slice(0, count)), `${limit}`)
  }
  t.strictSame((await bob.list()).json(), shown(rows), 'all plants without a limit')
  t.equal((await bob.list('?limit=0')).body, '[]')
})

t.test('a user without plants has an empty list', async (t) => {
  t.equal((await (await as('carol')).list()).body, '[]')
})

t.test('an unknown parameter is rejected', async (t) => {
  const rejected = await (await as('bob')).list('?limit=1&offset=2')
  t.match(rejected.json(), { error: 40016, message: 'offset is not a parameter here: use limit or after.' })
  const rejectedDelete = await (await as('bob')).delete('1?force=true')
  t.match(rejectedDelete.json(), { error: 40016, message: 'force is not a parameter here: use none.' })
})

t.test('a long list ends early when the database fails midway, and the service goes on', async (t) => {
  const { as, database, listen, url } = await startApp(t)
  await storePlants(url, 'leo', range(1000).map((index) => ({ id: BigInt(index), name: 'Ivy' })))
  const leo = await as('leo')
  database.readLong = () => Promise.reject(new Error('the connection is lost'))
  const response = await fetch(`${await listen()}/plants`, { headers: { authorization: leo.authorization } })
  t.equal(response.status, 200)
  await t.rejects(response.text(), { message: 'terminated' })
  t.equal((await (await as('mia')).list()).statusCode, 200)
})

t.test('a short list does not wait for a large one', async (t) => {
  await storePlants(url, 'judy', [{ id: 1n, name: 'n'.repeat(20_000) }])
  await storePlants(url, 'kim', [{ id: 1n, name: 'Ivy' }])
  const [judy, kim] = [await as('judy'), await as('kim')]
  const { readLong } = database
  const held = Promise.withResolvers<void>()
  database.readLong = async (statement, values) => {
    await held.promise
    return readLong(statement, values)
  }
  t.teardown(() => { database.readLong = readLong })
  const pairs = Array.from({ length: 20 }, () => ({ large: judy.list(), short: kim.list() }))
  for (const { short } of pairs) t.strictSame((await short).json(), [{ name: 'Ivy' }])
  held.resolve()
  for (const { large } of pairs) t.equal((await large).json().length, 1)
})

t.test('a client that disconnects before a long list begins causes no warning and no error', async (t) => {
  await storePlants(url, 'ivan', range(1000).map((index) => ({ id: BigInt(index), name: 'Ivy' })))
  const ivan = await as('ivan')
  const { hostname, port } = new URL(await listen())
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants')
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const reader = connect(Number(port), hostname)
  reader.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${ivan.authorization}\r\n\r\n`)
  const [socket] = await accepted
  while ((await client.query(waitingForLocks)).rowCount === 0);
  const closed = new Promise((resolve) => socket.once('close', resolve))
  reader.resetAndDestroy()
  await closed
  await client.query('commit')
  t.equal((await ivan.list('?limit=1')).statusCode, 200)
  const complaints = log.map((line) => JSON.parse(line)).filter(({ level }) => /warn|error|fatal/.test(level))
  t.strictSame(complaints, [])
})

// Some names look like numbers, arrays, null or SQL parameters. Some names differ only in case or an accent.
const usernames = [
  '1', '2', '01', '1 ', 'a,b', 'a', 'b', '{a,b}', '"a"', 'a"b', 'a\\', 'NULL', 'null', '{}', 'A', 'á', '$1'
]

/** `place` chooses 0, 1, 20 or 700 small plants, or two small plants and a large one. */
function plantsOf (user: string, place: number) {
  const count = [0, 1, 20, 3, 700][place % 5] as number
  return range(count).map((id) => ({
    name: place % 5 === 3 && id === 1 ? `${user} ${'n'.repeat(600)}` : `plant ${id}`,
    ...(id + place) % 2 === 0 && { tag: user }
  }))
}

async function storeAll (url: string): Promise<void> {
  for (const [place, user] of usernames.entries()) {
    await storePlants(url, user, plantsOf(user, place).map((plant, id) => ({ id: BigInt(id), ...plant })))
  }
}

/** Returns whether the latest list statement read the lists of several requests. */
async function isJoinedIn (url: string): Promise<boolean> {
  const [last] = await sql(url, `select query like '%unnest%' as is_joined from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database() and query like '%json_agg%'
    order by query_start desc limit 1`)
  return last?.is_joined as boolean
}

for (const [WRITE_BATCH, isJoined] of [['500', true], ['1', false]] as const) {
  const how = isJoined ? 'together' : 'one by one'
  t.test(`with WRITE_BATCH=${WRITE_BATCH} queued lists are read ${how} and never mixed`, async (t) => {
    const { as, sendBlocked, unblock, url } = await startBlocked(t, { WRITE_BATCH }, 'lock table plants')
    await storeAll(url)
    const users = await Promise.all(usernames.map((name) => as(name)))
    // Make the service cache the tokens, so that the lists below share statements.
    await Promise.all(users.map((user) => user.list('?limit=0')))
    const limits = [undefined, 0, 1, 2, 19, 500, 501]
    const wanted = usernames.flatMap((_, place) => limits.map((limit, index) =>
      ({ place, limit, from: (place + index) % 3 })))
      // Mix the requests, so that adjacent requests belong to different users.
      .toSorted((a, b) => (a.place * 31 + (a.limit ?? 7)) % 17 - (b.place * 31 + (b.limit ?? 7)) % 17)
    const responses = await sendBlocked(...wanted.map(({ place, limit, from }) => () => {
      const after = from === 0 ? '' : `after=${cursorAt(from)}`
      const query = limit === undefined ? after : `limit=${limit}&${after}`
      return (users[place] as typeof users[0]).list(`?${query}`)
    }))
    await unblock()
    for (const [index, response] of (await Promise.all(responses)).entries()) {
      const { place, limit = Infinity, from } = wanted[index] as typeof wanted[0]
      const name = usernames[place] as string
      const expected = plantsOf(name, place).slice(from, from + limit)
      t.strictSame(response.json(), expected, `${limit} of ${name} from ${from}`)
    }
    await Promise.all(users.slice(0, 2).map((user) => user.list('?limit=1')))
    t.equal(await isJoinedIn(url), isJoined)
  })
}

t.test('a user whose last list was slow has the next ones read alone, until one is not slow', async (t) => {
  const { sendBlocked, unblock, alice, url } = await startBlocked(t, {}, 'lock table plants')
  // Make two lists of alice slow. After the first slow list, the service reads her lists one by one.
  for (let count = 0; count < 2; count++) {
    const [slow] = await sendBlocked(() => alice.list())
    // A list that takes 200 ms counts as slow.
    await delay(200)
    await unblock()
    t.equal((await slow)?.statusCode, 200)
  }
  for (const isJoined of [false, true]) {
    await Promise.all([alice.list(), alice.list()])
    t.equal(await isJoinedIn(url), isJoined)
  }
})

t.test('queued lists of a user whose list was slow are read alone', async (t) => {
  const { sendBlocked, unblock, alice, url } =
    await startBlocked(t, { MEMORY_BUDGET: '16777216' }, 'lock table plants')
  await storePlants(url, 'alice', [{ id: 1n, name: 'Ivy' }])
  // At least 71 of these lists are queued. If the service read them as long lists, some would be rejected:
  // the memory budget allows a user only 32 long lists.
  const responses = await sendBlocked(...range(120).map(() => () => alice.list()))
  await delay(200)
  await unblock()
  const bodies = (await Promise.all(responses)).map((response) => response.json())
  t.strictSame(bodies, Array(120).fill([{ name: 'Ivy' }]))
  t.equal(await isJoinedIn(url), false)
})

t.test('a list is rejected at once when MAX_QUEUED others are queued', async (t) => {
  const { sendBlocked, unblock, alice } = await startBlocked(t, { MAX_QUEUED: '3' }, 'lock table plants')
  const responses = await sendBlocked(...range(5).map(() => () => alice.list()))
  t.match((await responses[4])?.json(), { error: 50302 })
  await unblock()
  t.strictSame(statuses(await Promise.all(responses)), [200, 200, 200, 200, 503])
})

t.test('when a statement for several lists reaches its time limit each list is read alone', async (t) => {
  const url = await createDatabase(t)
  await storeAll(url)
  await storePlants(url, 'slow', [{ id: 1n, name: 'Ivy' }])
  await sql(url, `alter table plants rename to stored;
    create function wait_for (owner text) returns bool language plpgsql volatile as
      $$ begin if owner = 'slow' then perform pg_sleep(60); end if; return true; end $$;
    create view plants as select * from stored where wait_for(owner)`)
  const { as } = await startApp(t, { DATABASE_URL: url, STATEMENT_TIMEOUT: '500ms' })
  const users = await Promise.all([...usernames, 'slow'].map((name) => as(name)))
  // Make the service cache the tokens, so that the lists share statements.
  await Promise.all(users.map((user) => user.delete(-1)))
  const lists = await Promise.all(users.map((user) => user.list()))
  for (const [place, name] of usernames.entries()) {
    t.strictSame(lists[place]?.json(), plantsOf(name, place), name)
  }
  t.match(lists.at(-1)?.json(), { error: 50304 })
})

t.test('a user with large lists has them read alone until they are short again', async (t) => {
  await storePlants(url, 'lena', [{ id: 1n, name: 'n'.repeat(20_000) }])
  const lena = await as('lena')
  const { read, readLong } = database
  const reads: string[] = []
  database.read = (...args) => {
    reads.push('short')
    return read(...args)
  }
  database.readLong = (...args) => {
    reads.push('long')
    return readLong(...args)
  }
  t.teardown(() => Object.assign(database, { read, readLong }))
  const listed = async () => {
    reads.length = 0
    t.equal((await lena.list()).statusCode, 200)
    return reads.join(' ')
  }
  t.equal(await listed(), 'short long long', 'each statement for short pages gives up, the last one does not')
  t.equal(await listed(), 'long long')
  await lena.delete(1)
  await lena.create({ id: 2, name: 'Ivy' })
  t.equal(await listed(), 'long')
  // If a list takes over 100 ms, the user's next list may use `readLong` again. Repeat until a list is fast.
  while (await listed() !== 'short');
})

t.test('a long list that exceeds the memory budget is rejected, and a short one is not', async (t) => {
  // One user may reserve half of the memory budget: 32 long lists of 256 KiB.
  const { app, as, listen, url } = await startApp(t, { MEMORY_BUDGET: '16777216' })
  const address = await listen()
  await sql(url, `insert into plants
    select 'alice', id, repeat('x', 10000) from generate_series(1, 3000) as id`)
  const { authorization } = await as('alice')
  const { hostname, port } = new URL(address)
  const readers = range(32).map(() => connect(Number(port), hostname))
  t.teardown(() => { for (const reader of readers) reader.destroy() })
  await Promise.all(readers.map(async (reader) => {
    reader.write(`GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`)
    await once(reader, 'readable')
    t.match(String(reader.read(12)), 'HTTP/1.1 200')
  }))
  const rejected = await app.inject({ url: '/plants', headers: { authorization } })
  t.match(rejected, { statusCode: 503, headers: { 'retry-after': '1' } })
  t.match(rejected.json(), { error: 50302 })
  await sql(url, "insert into plants values ('bob', 1, 'Ivy')")
  t.strictSame((await (await as('bob')).list()).json(), [{ name: 'Ivy' }])
  for (const reader of readers) reader.destroy()
  while ((await app.inject({ url: '/plants?limit=200', headers: { authorization } })).statusCode === 503);
})
