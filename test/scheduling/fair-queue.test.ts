import pg from 'pg'
import t, { type Test } from 'tap'
import { openDatabase, type Database } from '../../src/database/database.ts'
import { FairQueue } from '../../src/scheduling/fair-queue.ts'
import { createDatabase } from '../support/database.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)

t.test('owners take turns, however much one of them has waiting', async (t) => {
  const queue = new FairQueue<string>()
  for (const item of ['m1', 'm2', 'm3', 'a1', 'b1', 'a2']) queue.add(item.charAt(0), item, 1)
  t.notOk(queue.isIdle())
  t.strictSame(queue.take((item) => item.endsWith('1')), ['m1', 'a1', 'b1'])
  t.equal(queue.takeNext(), 'm2')
  t.strictSame(queue.take(() => true), ['a2', 'm3'])
  t.equal(queue.takeNext(), undefined)
  t.ok(queue.isIdle())
  t.equal(queue.weight, 0)
})

t.test('room is made by who has most waiting, the youngest first, and never for who would have more', async (t) => {
  const queue = new FairQueue<string>()
  for (const item of ['m1', 'm2', 'm3', 'a1']) queue.add(item.charAt(0), item, 1)
  queue.add('m', 'm without weight', 0)
  t.equal(queue.evictFromLargest('m', 1), undefined)
  t.equal(queue.evictFromLargest('a', 2), undefined)
  t.equal(queue.evictFromLargest('a', 1), 'm3')
  t.equal(queue.evictFromLargest('a', 1), undefined)
  t.equal(queue.evictFromLargest('b', 1), 'm2')
  t.equal(queue.evictFromLargest('b', 1), undefined)
  t.equal(queue.weight, 2)
})

t.test('past maxWaiting a write is refused, and the one before it is carried out', async (t) => {
  const database = openDatabase({ url: await createDatabase(t), statementTimeoutMs: 5000, maxQueued: 1 })
  t.teardown(() => database.close())
  const one = { name: 'one', text: 'select 1' }
  const [first, second] = await Promise.allSettled([database.write(one), database.write(one)])
  t.match(first, { status: 'fulfilled', value: [['1']] })
  t.match(second, { status: 'rejected', reason: { name: 'OVERLOADED' } })
})

/** A database whose table is locked until it is told to let go. */
async function openLocked (t: Test, maxQueued: number) {
  const url = await createDatabase(t)
  const client = new pg.Client(url)
  await client.connect()
  const database = openDatabase({ url, statementTimeoutMs: 60_000, maxQueued })
  t.teardown(async () => {
    await client.end()
    await database.close()
  })
  await client.query('begin; lock table plants')
  return { database, letGo: () => client.query('commit') }
}

const hanging = { name: 'hanging', text: 'select from plants' }

/** Notes whose reads are answered, and whose refused, in the order in which that happens. */
function readAs (database: Database, answered: string[], refused: string[]) {
  return (owner: string, isLong = false) => database.read(hanging, [], { owner, isLong }).then(
    () => { answered.push(owner) },
    ({ name }) => { refused.push(`${owner}: ${name}`) })
}

t.test('a read waits for a hundred of another owner, not for all', async (t) => {
  const { database, letGo } = await openLocked(t, 1000)
  const answered: string[] = []
  const read = readAs(database, answered, [])
  const reads = [...range(500).map(() => read('mallory')), read('alice')]
  await letGo()
  await Promise.all(reads)
  t.equal(answered.indexOf('alice'), 101)
  t.equal(answered.length, 501)
})

t.test('a long read waits for one of another owner, not for all', async (t) => {
  const { database, letGo } = await openLocked(t, 1000)
  const answered: string[] = []
  const read = readAs(database, answered, [])
  const reads = [...range(10).map(() => read('mallory', true)), read('alice', true)]
  t.equal(database.waiting().long_read, 11, 'what is not sent yet counts, too')
  await letGo()
  await Promise.all(reads)
  t.equal(answered.indexOf('alice'), 2)
})

t.test('between long reads others are served for as long as the last one kept the process', async (t) => {
  const database = openDatabase({ url: await createDatabase(t), statementTimeoutMs: 5000, maxQueued: 1000 })
  t.teardown(() => database.close())
  const one = { name: 'one', text: 'select 1' }
  const read = () => database.read(one, [], { owner: 'mallory', isLong: true })
  const seen: string[] = []
  function keepBusy () {
    const end = performance.now() + 60
    while (performance.now() < end);
    setTimeout(() => { seen.push('another') }, 30)
  }
  await read()
  await Promise.all([read().then(keepBusy), read().then(() => { seen.push('the next long read') })])
  t.strictSame(seen, ['another', 'the next long read'])
})

t.test('past MAX_QUEUED who has most waiting is refused, and not who comes', async (t) => {
  const { database, letGo } = await openLocked(t, 150)
  const answered: string[] = []
  const refused: string[] = []
  const read = readAs(database, answered, refused)
  const reads = [...range(150).map(() => read('mallory')), read('mallory'), read('alice'), read('bo')]
  await letGo()
  await Promise.all(reads)
  t.strictSame(refused, Array(3).fill('mallory: OVERLOADED'))
  t.strictSame(answered.filter((owner) => owner !== 'mallory'), ['alice', 'bo'])
})

t.test('a read that has waited too long for its turn is refused', async (t) => {
  const { database, letGo } = await openLocked(t, 1000)
  const refused: string[] = []
  const read = readAs(database, [], refused)
  const reads = range(301).map(() => read('mallory'))
  await reads.at(-1)
  // Three connections have a hundred each: no more are opened while statements hang.
  t.strictSame(refused, ['mallory: OVERLOADED'])
  await letGo()
  await Promise.all(reads)
})

t.test('what has waited elsewhere before waits that much less', async (t) => {
  const { database, letGo } = await openLocked(t, 1000)
  const read = (since?: number) => database.read(hanging, [], { owner: 'mallory', isLong: true, since })
  const reads = [read(), read(performance.now() - 60_000), read()]
  await t.rejects(reads[1] as Promise<unknown>, { name: 'OVERLOADED' })
  await letGo()
  await Promise.all([reads[0], reads[2]])
})
