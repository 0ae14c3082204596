// Tests which statements a gateway sends for its requests.
import { PassThrough } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { openDatabase } from '../../src/database/database.ts'
import { batchEvents } from '../../src/telemetry-events.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { createGateway } from '../../src/table-gateway/gateway.ts'
import { booksTable, createLibrary, storeBooks, type Book } from '../support/books.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { identityOf } from '../support/identity.ts'

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
