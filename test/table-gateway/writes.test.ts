// Tests creates and deletes: their results, batches and failures.
import { setImmediate as nextTick, setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import type { Database } from '../../src/database/database.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { createGateway } from '../../src/table-gateway/gateway.ts'
import { startBlocked } from '../support/blocked.ts'
import { BookSchema, booksTable, createLibrary, startLibrary, type Book } from '../support/books.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { identityOf } from '../support/identity.ts'
import { foreignSettings, testFields } from '../support/values.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)

t.test('a value of a field is rejected, or listed as the create returned it', async (t) => {
  const { as } = await startLibrary(t, { DATABASE_URL: `${await createLibrary(t)}?${foreignSettings}` })
  await testFields(t, as, BookSchema, 'title')
})

// Single statements (1) and batches (7 and 500) must give the same responses.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} a write takes effect once, for its own user`, async (t) => {
    const { as } = await startLibrary(t, { WRITE_BATCH })
    // These users and ids look alike when joined.
    const names = ['carol', '1carol', '1 carol', 'carol1', 'carol 1']
    const users = await Promise.all(names.map((name) => as(name)))
    const ids = [1, 2, 11, 12, 21]
    // Make the service cache the tokens, so that the writes share batches.
    await Promise.all(users.map((user) => user.list()))
    await Promise.all(users.map(async (user, place) => {
      const four = ids.flatMap((id) => Array(4).fill(id))
      const responses = await Promise.all(four.map((id, copy) =>
        user.create({ id, title: `${id} of user ${place}, copy ${copy}` })))
      const bodies = responses.map((response) => response.json())
      const stored = bodies.filter(({ error }) => error === undefined)
      t.strictSame(stored.map(({ title }) => parseInt(title)), ids)
      t.strictSame((await user.list()).json(), stored)
      t.strictSame(bodies.filter(({ error }) => error),
        Array(15).fill({ error: 40098, message: 'You already have this book.' }))
    }))
    await Promise.all(users.slice(0, 2).map(async (user) => {
      const twice = [...ids, 3, ...ids]
      const responses = await Promise.all(twice.map((id) => user.delete(id)))
      const deleted = twice.filter((_, index) => responses[index]?.statusCode === 204)
      t.strictSame(deleted.toSorted((a, b) => a - b), ids)
      t.strictSame(responses.filter(({ body }) => body !== '').map((response) => response.json()),
        Array(6).fill({ error: 40498, message: 'You have no such book.' }))
    }))
    const counts = await Promise.all(users.map(async (user) => (await user.list()).json().length))
    t.strictSame(counts, [0, 0, 5, 5, 5])
    t.equal((await users[0]?.create({ id: 1, title: 'Ivy' }))?.statusCode, 200)
  })
}

/** Creates books in one tick. Returns the rows of each statement, the most in flight, and the results. */
const width = 2 + booksTable.fields.length

async function statementsFor (WRITE_BATCH: number, books: Array<Book & { id: number | bigint }>) {
  const statements: string[][] = []
  let [inFlight, mostInFlight] = [0, 0]
  const database = {
    isDistributed: () => false,
    async writeBatch (_statement: unknown, values: string[]) {
      const rows = range(values.length / width).map((row) => values.slice(width * row, width * (row + 1)))
      statements.push(rows.map(([, id, title]) => `${id} ${title}`))
      mostInFlight = Math.max(mostInFlight, ++inFlight)
      await nextTick()
      inFlight--
      // Like `on conflict do nothing`.
      return rows.filter(([, id], index) => rows.findIndex(([, other]) => other === id) === index)
    }
  }
  const config = { WRITE_BATCH, MAX_QUEUED: 1000 }
  const both = { ...database, write: database.writeBatch } as unknown as Database
  const { create } = createGateway<Book>(both, booksTable, config, new MemoryBudget(1))
  const results = await Promise.all(books.map((book) => create(identityOf('alice'), book)))
  return { statements, mostInFlight, results }
}

t.test('a statement creates at most WRITE_BATCH books, at most 512, and the first of each id', async (t) => {
  for (const [writeBatch, count, sizes, most] of [
    [1, 3, [1, 1, 1], 1], [5, 12, [5, 5, 2], 2], [9999, 600, [512, 96], 1]
  ] as const) {
    const books = range(count).map((id) => ({ id, title: 'Ivy' }))
    const { statements, mostInFlight } = await statementsFor(writeBatch, books)
    t.strictSame(statements.map(({ length }) => length), sizes)
    t.equal(mostInFlight, most, 'one statement alone of a user, and two full batches')
  }
  // As numbers, the ids beyond 2^53 would be equal.
  const { statements, results } = await statementsFor(500, [
    { id: 2n ** 53n + 1n, title: 'Fern' }, { id: 1, title: 'Ivy' }, { id: 1, title: 'Moss' },
    { id: 2n ** 53n, title: 'Oak' }, { id: 2n ** 53n + 1n, title: 'Yew' }
  ])
  t.strictSame(statements,
    [['1 Ivy', '1 Moss', '9007199254740992 Oak', '9007199254740993 Fern', '9007199254740993 Yew']])
  t.strictSame(results, [true, true, false, true, false])
})

const { alice, client, log, sendBlocked, unblock, url } =
  await startBlocked(t, { STATEMENT_TIMEOUT: '6s' }, 'lock table books in exclusive mode', startLibrary)
const listed = async () => (await alice.list()).json().map(({ title }: { title: string }) => title)
const untilBlocked = async (processes: number) => {
  while ((await client.query(waitingForLocks)).rowCount !== processes) await delay(10)
}
const create = (title: string, id: number) => () => alice.create({ id, title })

t.afterEach(() => sql(url, 'delete from books'))

t.test('a create whose connection is lost has an unknown outcome and is not sent again', async (t) => {
  // Connect early, because the creates wait for at most STATEMENT_TIMEOUT.
  const next = await openSession(t, url)
  const [first, ...others] = await sendBlocked(...['Fern', 'Ivy', 'Moss', 'Monstera'].map(create))
  // PostgreSQL grants the lock to the first create, then to the client `next`, then to the other creates.
  const locked = next.query('begin; lock table books in exclusive mode')
  await untilBlocked(2)
  await unblock()
  t.equal((await first)?.statusCode, 200)
  await locked
  // On a slow machine the batch times out before, and then each create waits alone.
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  let lost
  while (lost === undefined) {
    lost = await Promise.race([Promise.all(others), client.query(end).then(() => undefined)])
  }
  for (const response of lost) t.match(response.json(), { error: 50301 })
  await next.query('commit')
  t.strictSame(await listed(), ['Fern'])
  t.equal((await alice.create({ id: 1, title: 'Ivy' })).statusCode, 200)
})

t.test('a batch locks its books in the order of the primary key', async (t) => {
  for (const [act, status, lock] of [
    [(id: number) => alice.create({ id, title: 'Ivy' }), 200, (ids: string) =>
      `insert into books select 'alice', id, 'Fern' from unnest(array[${ids}]) as id`],
    [alice.delete, 204, (ids: string) =>
      `select from books where id in (${ids}) and owner = 'alice' for update`]
  ] as const) {
    await client.query(`begin; ${lock('0, 2')}`)
    const first = act(0)
    await untilBlocked(1)
    const batch = [10, 2, 1].map((id) => act(id))
    await untilBlocked(2)
    // A correct batch waits for book 2 before it locks book 10, so `client` can lock book 10. Otherwise
    // `client` gives up after 100 ms, before PostgreSQL looks for deadlocks (after 1 s).
    await t.resolves(client.query(`set local lock_timeout = '100ms'; ${lock('10')}`))
    await client.query('rollback')
    t.strictSame(statuses(await Promise.all([first, ...batch])), Array(4).fill(status))
  }
})

t.test('an error of the database becomes the error that the client gets', async (t) => {
  await sql(url, `create function fail () returns trigger language plpgsql as
    $$ begin raise exception 'private' using errcode = new.title; end $$;
    create trigger fail before insert on books for each row when (new.id < 0) execute function fail()`)
  const cases = {
    57014: [50304, 'The database did not respond in time.'],
    53100: [50305, 'The database has no room to store anything.'],
    '42P01': [50301, 'The database cannot be reached.'],
    42703: [50001, 'Something went wrong inside the service.']
  }
  for (const [code, [error, message]] of Object.entries(cases)) {
    const response = await alice.create({ id: -1, title: code })
    t.strictSame(response.json(), { error, message })
    t.equal(response.headers['retry-after'], error === 50001 ? undefined : '1')
    t.match(JSON.parse(log.findLast((line) => JSON.parse(line).error === error) as string), {
      level: 'error',
      reqId: response.headers['x-request-id'],
      err: { type: 'DatabaseError', message: 'private', code, stack: /\n +at / }
    })
  }
})

t.test('deletes that wait too long for a locked table get the error of a slow database', async (t) => {
  const { as, url } = await startLibrary(t, { STATEMENT_TIMEOUT: '500ms' })
  const alice = await as('alice')
  const blocking = await openSession(t, url, 'begin; lock table books in access exclusive mode')
  // The batch times out. Then the service retries each delete with a statement that PostgreSQL cannot prepare
  // while the table is locked. The first retry times out. The others fail: no statement is prepared.
  const responses = await Promise.all(range(20).map((id) => alice.delete(id)))
  await blocking.query('rollback')
  t.strictSame(responses.map((response) => response.json().error), Array(20).fill(50304))
})
