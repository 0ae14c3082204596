// Tests which statements a gateway sends for its requests, their order of keys, and docs/statements.sql.
import assert from 'node:assert/strict'
import { readFile } from 'node:fs/promises'
import { PassThrough } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import fc from 'fast-check'
import type { QueryResult } from 'pg'
import t, { type Test } from 'tap'
import { writeStatements } from '../../dev/write-sql.ts'
import { openDatabase } from '../../src/database/database.ts'
import { ownedTables } from '../../src/domains.ts'
import { batchEvents } from '../../src/telemetry-events.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { createGateway } from '../../src/table-gateway/gateway.ts'
import { byKey } from '../../src/table-gateway/table.ts'
import { booksTable, createLibrary, storeBooks, type Book } from '../support/books.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { identityOf } from '../support/identity.ts'
import { matchEach } from '../support/match.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const [ann, bob] = [identityOf('ann'), identityOf('bob')]

async function openBooks (t: Test, memoryBudget = 100_000_000) {
  const url = await createLibrary(t)
  const database = openDatabase({ url, statementTimeoutMs: 60_000 })
  t.teardown(database.close)
  // Before the first connection is open, a gateway sends each request alone: the database may be Citus.
  await database.read({ name: '', text: 'select' })
  const config = { WRITE_BATCH: undefined, MAX_QUEUED: 1000 }
  const books = createGateway<Book>(database, booksTable, config, new MemoryBudget(memoryBudget))
  const list = (identity = ann, limit = Infinity) => books.list(identity, { limit }, new PassThrough())
  return { books, database, list, url }
}

t.test('a statement has one of 32 numbers of rows, and one delete a statement of its own', async (t) => {
  const { books, database, url } = await openBooks(t)
  const sent = t.capture(database, 'writeBatch', database.writeBatch)
  const names = () => sent().map(({ args: [{ name, preparedAs = name }] }) => preparedAs)
  for (const count of [1, 7, 8, 9, 33]) {
    const results = await Promise.all(range(count).map((id) =>
      books.create(ann, { id: 100 * count + id, title: 'Ivy' })))
    t.strictSame(results, Array(count).fill(true))
  }
  t.strictSame(names(), [1, 7, 8, 10, 40].map((rows) => `books-insert-${rows}`))
  t.equal((await sql(url, 'select from books')).length, 58)
  t.equal(await books.delete(ann, '100'), true)
  t.strictSame(await Promise.all(['100', '700'].map((id) => books.delete(ann, id))), [false, true])
  t.strictSame(names(), ['books-delete-one', 'books-delete'])
})

t.test('a short list needs no memory budget, and a long list is rejected without', async (t) => {
  // A list with two pages of 128 KiB in memory leaves as much to other users.
  const { list, url } = await openBooks(t, 4 * 131_072 - 1)
  await storeBooks(url, 'ann', range(100).map((id) => ({ id: BigInt(id), title: 'Ivy' })))
  await storeBooks(url, 'bob', range(101).map((id) => ({ id: BigInt(id), title: 'Ivy' })))
  t.equal((await list()).rows instanceof Array, true)
  t.match(await list(bob, 100), { nextId: '100' })
  await t.rejects(list(bob), { name: 'OVERLOADED' })
})

t.test('a page that fails after its reader has gone causes no unhandled rejection', async (t) => {
  const { database, list, url } = await openBooks(t)
  await storeBooks(url, 'ann', range(1000).map((id) => ({ id: BigInt(id), title: 'Ivy' })))
  const pages = (await list()).rows as AsyncGenerator
  t.capture(database, 'readLong', () => Promise.reject(new Error('the connection is lost')))
  await pages.next()
  await pages.return(undefined)
  // An unhandled rejection would fail this test before the next statement has its result.
  t.equal((await list(ann, 1)).nextId, '1')
})

t.test('each kind of batch has a name that begins with the table', async (t) => {
  const { books, list, url } = await openBooks(t)
  await storeBooks(url, 'ann', range(2200).map((id) => ({ id: BigInt(id), title: 'Ivy' })))
  const seen = new Set<string>()
  const note = ({ name }: { name: string }) => { seen.add(name) }
  batchEvents.subscribe(note)
  t.teardown(() => batchEvents.unsubscribe(note))
  await books.create(ann, { id: -1, title: 'Fern' })
  await books.delete(ann, '-1')
  await list(ann, 2150)
  // A batch fails at a locked row, and its item waits alone for the lock.
  const locker = await openSession(t, url, "begin; insert into books values ('ann', -2, 'Moss')")
  const alone = books.create(ann, { id: -2, title: 'Fern' })
  const isAlone = () => seen.has('books_create_alone')
  while (!isAlone() || (await locker.query(waitingForLocks)).rowCount === 0) await delay(10)
  await locker.query('rollback')
  t.equal(await alone, true)
  const kinds = ['create', 'create_alone', 'delete', 'list', 'page']
  t.strictSame([...seen].sort(), kinds.map((kind) => `books_${kind}`))
})

// Most of these characters have another order in UTF-16 than in UTF-8.
const characters = ['a', 'b', '\u00E9', '\uD7FF', '\uFF21', '\u{1F600}', '\u{10FFFF}']
const id = fc.oneof(fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }), fc.constant(2n ** 53n + 1n))
const key = fc.record({ user: fc.string({ unit: fc.constantFrom(...characters) }), id: id.map(String) })
const keys = fc.uniqueArray(key, { selector: ({ user, id }) => `${id} ${user}`, minLength: 1, maxLength: 50 })

// Otherwise, an import and the service could deadlock.
t.test('keys have the order of the collation "C" and of bigint', async (t) => {
  const url = await createLibrary(t)
  await fc.assert(fc.asyncProperty(keys, async (keys) => {
    const [row] = await sql(url, `select array_agg(owner order by owner collate "C", id) as users,
        array_agg(id::text order by owner collate "C", id) as ids
      from unnest($1::text[], $2::bigint[]) as key (owner, id)`,
    [keys.map(({ user }) => user), keys.map(({ id }) => id)])
    const sorted = keys.toSorted(byKey)
    const expected = { users: sorted.map(({ user }) => user), ids: sorted.map(({ id }) => id) }
    assert.deepEqual(expected, row)
  }), {
    examples: [
      [['\uFF21', '\u{1F600}'].map((user) => ({ user, id: '1' }))],
      [[2n ** 53n + 1n, 2n ** 53n].map((id) => ({ user: 'a', id: String(id) }))]
    ]
  })
})

t.test('docs/statements.sql has the statements of each table: npm run sql', async (t) => {
  const file = new URL('../../docs/statements.sql', import.meta.url)
  t.equal(await readFile(file, 'utf8'), writeStatements(ownedTables))
})

t.test('the examples run on tables of any SQL types, and change nothing', async (t) => {
  t.match(writeStatements([booksTable]), /\btitle, sub_title, last_read_at\b/, 'columns are in snake case')
  const client = await openSession(t, await createLibrary(t))
  for (const table of [...ownedTables, booksTable]) {
    const results = await client.query(writeStatements([table])) as unknown as QueryResult[]
    const rows = results.flatMap(({ command, rows }) => /SELECT|INSERT|DELETE/.test(command) ? [rows] : [])
    const row = (owner: string, id: number) => ({ owner, id: String(id) })
    const page = (count: number) => ({ count: String(count), last_id: null, seconds: Number })
    matchEach(t, rows, [
      [row('alice', 1)], [row('alice', 2), row('alice', 3), row('bob', 1), row('bob', 2)],
      [{}], [page(3)], [{ n: '1', ...page(3) }, { n: '2', ...page(2) }], [{ count: '3' }], [{ id: '3' }],
      [row('alice', 1)], [row('alice', 2), row('bob', 1)]
    ])
    t.strictSame((await client.query(`select from ${table.name}`)).rows, [])
  }
})
