import { once } from 'node:events'
import { get } from 'node:http'
import type { Socket } from 'node:net'
import t from 'tap'
import type { Statement } from '../../src/database/database.ts'
import type { Domain } from '../../src/domains.ts'
import { statementEvents } from '../../src/telemetry-events.ts'
import { startApp } from '../support/app.ts'
import { startBlocked } from '../support/blocked.ts'
import { createLibrary, registerBooks, startLibrary, storeBooks } from '../support/books.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { cursorAt, linkTo } from '../support/plants.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)

const { app, as, database, listen, log, url } = await startLibrary(t)
const address = await listen()
// The last page of a list of all these books is empty.
await storeBooks(url, 'ivan', range(2101).map((index) => ({ id: BigInt(index), title: 'Ivy' })))

t.test('the Link of a longer path names its last segment', async (t) => {
  const register: Domain['register'] = (app, ...parts) => {
    app.register(async (app) => registerBooks(app, ...parts), { prefix: '/shelves/:shelf' })
  }
  const { as } = await startApp(t, { DATABASE_URL: url }, register, '/shelves/1/books')
  await storeBooks(url, 'dora', [{ id: 1n, title: 'Ivy' }, { id: 2n, title: 'Moss' }])
  t.equal((await (await as('dora')).list('?limit=1')).headers.link, linkTo(1, 2, 'books'))
})

t.test('a long list ends early when the database fails midway, and the service goes on', async (t) => {
  const { authorization, list } = await as('ivan')
  const failing = t.capture(database, 'readLong', () => Promise.reject(new Error('the connection is lost')))
  const response = await fetch(`${address}/books`, { headers: { authorization } })
  t.equal(response.status, 200)
  await t.rejects(response.text(), { message: 'terminated' })
  failing.restore()
  t.equal((await list()).json().length, 2101)
})

t.test('a HEAD request for a long list reads only the first page', async (t) => {
  const { authorization, list } = await as('ivan')
  const before = log.length
  const long = t.capture(database, 'readLong', database.readLong)
  const { statusCode, body } = await app.inject({ method: 'HEAD', url: '/books', headers: { authorization } })
  // Fastify would read on after the response, and log that the client has gone.
  await list('?limit=1')
  t.strictSame([statusCode, body, long().length], [200, '', 0])
  t.notMatch(log.slice(before).join(), 'Error on Stream')
})

t.test('a short list does not wait for a large one', async (t) => {
  await storeBooks(url, 'judy', [{ id: 1n, title: 'n'.repeat(20_000) }])
  await storeBooks(url, 'kim', [{ id: 1n, title: 'Ivy' }])
  const [judy, kim] = [await as('judy'), await as('kim')]
  const { readLong } = database
  const held = Promise.withResolvers<void>()
  t.capture(database, 'readLong', async (statement: Statement, values: unknown[]) => {
    // On a busy machine, a short list may count as slow. A slow list is a long read, too.
    if (values[0] === 'judy') await held.promise
    return readLong(statement, values)
  })
  const pairs = Array.from({ length: 20 }, () => ({ large: judy.list(), short: kim.list() }))
  for (const { short } of pairs) t.strictSame((await short).json(), [{ title: 'Ivy' }])
  held.resolve()
  for (const { large } of pairs) t.equal((await large).json().length, 1)
})

t.test('a client that disconnects before a long list begins causes no warning and no error', async (t) => {
  const { authorization, list } = await as('ivan')
  const before = log.length
  const client = await openSession(t, url, 'begin; lock table books')
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const reader = get(`${address}/books`, { headers: { authorization }, agent: false }).on('error', () => {})
  const [socket] = await accepted
  while ((await client.query(waitingForLocks)).rowCount === 0);
  const closed = new Promise((resolve) => socket.once('close', resolve))
  reader.socket?.resetAndDestroy()
  await closed
  await client.query('commit')
  t.equal((await list('?limit=1')).statusCode, 200)
  const lines = log.slice(before).map((line) => JSON.parse(line))
  // Ignore warnings of event-loop lag, which a busy machine may cause.
  t.strictSame(lines.filter(({ error, level }) => error !== undefined && /warn|error|fatal/.test(level)), [])
})

// Some names look like numbers, arrays, null or SQL parameters. Some names differ only in case or an accent.
const usernames = ['1', '01', '1 ', 'a,b', '{a,b}', 'a"b', 'a\\', 'NULL', '{}', 'A', 'a', '$1']

/** `place` chooses 0, 1, 20 or 700 small books, or two small books and a large one. */
function booksOf (user: string, place: number) {
  const count = [0, 1, 20, 3, 700][place % 5] as number
  return range(count).map((id) => ({
    title: place % 5 === 3 && id === 1 ? `${user} ${'n'.repeat(600)}` : `book ${id}`,
    ...(id + place) % 2 === 0 && { subTitle: user }
  }))
}

async function storeAll (url: string): Promise<void> {
  for (const [place, user] of usernames.entries()) {
    await storeBooks(url, user, booksOf(user, place).map((book, id) => ({ id: BigInt(id), ...book })))
  }
}

for (const [WRITE_BATCH, isJoined] of [['500', true], ['1', false]] as const) {
  const how = isJoined ? 'together' : 'one by one'
  t.test(`with WRITE_BATCH=${WRITE_BATCH} queued lists are read ${how} and never mixed`, async (t) => {
    const { as, sendBlocked, unblock, url } =
      await startBlocked(t, { WRITE_BATCH }, 'lock table books', startLibrary)
    await storeAll(url)
    const users = await Promise.all(usernames.map(async (name) => ({ name, ...await as(name) })))
    // Make the service cache the tokens, so that the lists below share statements.
    await Promise.all(users.map((user) => user.delete(-1)))
    const statements = new Set<string>()
    statementEvents.subscribe(({ name }) => { statements.add(name) })
    const lists = [Infinity, 0, 1, 19, 501].flatMap((limit, index) => users.map(({ name, list }, place) => {
      const from = (place + index) % 3
      const after = from === 0 ? '' : `after=${cursorAt(from)}`
      return {
        send: () => list(limit === Infinity ? `?${after}` : `?limit=${limit}&${after}`),
        expected: booksOf(name, place).slice(from, from + limit)
      }
    }))
    const responses = await sendBlocked(...lists.map(({ send }) => send))
    await unblock()
    for (const [index, response] of (await Promise.all(responses)).entries()) {
      t.strictSame(response.json(), lists[index]?.expected, `list ${index}`)
    }
    t.equal(statements.has('books-pages'), isJoined)
  })
}

t.test('the lists of a user whose last list was slow are read alone, until one is fast', async (t) => {
  const url = await createLibrary(t)
  for (const user of ['ann', 'slow']) await storeBooks(url, user, [{ id: 1n, title: 'Ivy' }])
  const wait = (seconds: number) => sql(url, `create or replace function wait_for (owner text) returns bool
    language plpgsql volatile as
    $$ begin if owner = 'slow' then perform pg_sleep(${seconds}); end if; return true; end $$`)
  await wait(0.05)
  await sql(url, `alter table books rename to stored;
    create view books as select * from stored where wait_for(owner)`)
  const { as, database } = await startLibrary(t, { DATABASE_URL: url })
  const users = await Promise.all(['slow', 'ann', 'zoe'].map((name) => as(name)))
  // Make the service cache the tokens, so that the lists share statements.
  await Promise.all(users.map((user) => user.delete(-1)))
  const [shared, alone] = [t.capture(database, 'read', database.read),
    t.capture(database, 'readLong', database.readLong)]
  /** Lists the books of all users. Returns the maximum bytes of each list of `slow` that was read alone. */
  const listAll = async () => {
    const responses = await Promise.all(users.map((user) => user.list()))
    for (const { statusCode } of responses) t.equal(statusCode, 200)
    // On a busy machine, the lists of the other users may be slow, too.
    return alone().flatMap(({ args: [, values = []] }) => values[0] === 'slow' ? [values[3]] : [])
  }
  t.strictSame(await listAll(), [])
  t.equal(shared().length, 1)
  t.strictSame(await listAll(), [65_536])
  await wait(0)
  t.strictSame(await listAll(), [65_536])
  while ((await listAll()).length > 0);
})

t.test('when a statement for several lists reaches its time limit each list is read alone', async (t) => {
  const url = await createLibrary(t)
  await storeAll(url)
  await storeBooks(url, 'slow', [{ id: 1n, title: 'Ivy' }])
  await sql(url, `alter table books rename to stored;
    create function wait_for (owner text) returns bool language plpgsql volatile as
      $$ begin if owner = 'slow' then perform pg_sleep(60); end if; return true; end $$;
    create view books as select * from stored where wait_for(owner)`)
  const { as, database } = await startLibrary(t, { DATABASE_URL: url, STATEMENT_TIMEOUT: '500ms' })
  const some = usernames.slice(0, 5)
  const users = await Promise.all([...some, 'slow'].map((name) => as(name)))
  // Make the service cache the tokens, so that the lists share statements.
  await Promise.all(users.map((user) => user.delete(-1)))
  const shared = t.capture(database, 'read', database.read)
  const lists = await Promise.all(users.map(async (user) => (await user.list()).json()))
  t.equal(shared().length, 1, 'no short list waits for a retry')
  t.match(lists.pop(), { error: 50304 })
  t.strictSame(lists, some.map(booksOf))
  const slow = users.at(-1) as typeof users[0]
  for (const statements of [1, 0]) {
    t.match((await slow.list()).json(), { error: 50304 })
    t.equal(shared().length, statements, 'after a slow list, the next one of the user is read alone')
  }
})

t.test('a user with a large first page has only long lists for 10 s', async (t) => {
  await storeBooks(url, 'lena', [{ id: 1n, title: 'n'.repeat(20_000) }])
  const lena = await as('lena')
  const short = t.capture(database, 'read', database.read)
  const long = t.capture(database, 'readLong', database.readLong)
  const listed = async () => {
    t.equal((await lena.list()).statusCode, 200)
    return { short: short().length, long: long().length }
  }
  t.same(await listed(), { short: 1, long: 2 }, 'only the last statement reads a large page')
  t.same(await listed(), { short: 0, long: 2 })
  await lena.delete(1)
  await lena.create({ id: 2, title: 'Ivy' })
  t.same(await listed(), { short: 0, long: 1 })
  const now = performance.now.bind(performance)
  t.intercept(performance, 'now', { value: () => now() + 10_000 })
  // If a list takes over 10 ms, the user's next list may use `readLong` again. Repeat until a list is fast.
  while ((await listed()).long > 0);
})

t.test('a long list that exceeds the memory budget is rejected, and a short one is not', async (t) => {
  // One user may reserve half of the memory budget: 32 long lists of 256 KiB.
  const { as, listen, url } = await startLibrary(t, { MEMORY_BUDGET: '16777216' })
  const address = await listen()
  await sql(url, `insert into books
    select 'alice', id, repeat('x', 10000) from generate_series(1, 1500) as id`)
  const { authorization, list } = await as('alice')
  const readers = range(32).map(() => get(`${address}/books`, { headers: { authorization } }))
  t.teardown(() => { for (const reader of readers) reader.destroy() })
  await Promise.all(readers.map(async (reader) => {
    const [response] = await once(reader, 'response')
    t.equal(response.statusCode, 200)
  }))
  isError(t, await list(), 50302, 'The service has more work than it can do.')
  await sql(url, "insert into books values ('bob', 1, 'Ivy')")
  t.strictSame((await (await as('bob')).list()).json(), [{ title: 'Ivy' }])
  for (const reader of readers) reader.destroy()
  while ((await list('?limit=200')).statusCode === 503);
})
