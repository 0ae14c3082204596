// What waits until what was read before has gone out.
import { PassThrough } from 'node:stream'
import { setImmediate as nextTurn } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { openDatabase } from '../../src/database/database.ts'
import { FairQueue } from '../../src/scheduling/fair-queue.ts'
import { createMemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { createDatabase } from '../support/database.ts'

const MiB = 1024 * 1024
const one = { name: 'one', text: 'select 1' }

async function open (t: Test) {
  const database = openDatabase({ url: await createDatabase(t), statementTimeoutMs: 5000, maxQueued: 1000 })
  t.teardown(() => database.close())
  return database
}

t.test('there is room for an owner until the answers hold a bound, and for each other one a share', async (t) => {
  const room = createMemoryBudget(64 * 1024 * 1024)
  const answer = new PassThrough()
  const hold = room.open('mallory', answer)
  hold(63 * MiB)
  t.ok(room.hasCapacity('mallory'))
  hold(64 * MiB)
  t.notOk(room.hasCapacity('mallory'))
  t.ok(room.hasCapacity('alice'))
  room.open('alice', new PassThrough())(31 * MiB)
  t.ok(room.hasCapacity('alice'))
  room.open('alice', new PassThrough())(MiB)
  t.notOk(room.hasCapacity('alice'))
  t.ok(room.hasCapacity('bo'))
  hold(0)
  t.ok(room.hasCapacity('mallory'))
})

t.test('an answer that is over holds nothing, whatever is still read for it', async (t) => {
  const room = createMemoryBudget(64 * 1024 * 1024)
  const answer = new PassThrough()
  const hold = room.open('mallory', answer)
  hold(100 * MiB)
  answer.destroy()
  while (!room.hasCapacity('mallory')) await nextTurn()
  hold(100 * MiB)
  t.ok(room.hasCapacity('mallory'))
})

t.test('who may not go keeps the place, and the others pass', async (t) => {
  const held = new Set(['m'])
  const queue = new FairQueue<string>((owner) => !held.has(owner))
  for (const item of ['m1', 'm2', 'a1']) queue.add(item.charAt(0), item, 1)
  t.notOk(queue.isIdle())
  t.equal(queue.takeNext(), 'a1')
  t.ok(queue.isIdle())
  t.equal(queue.takeNext(), undefined)
  held.clear()
  t.strictSame([queue.takeNext(), queue.takeNext()], ['m1', 'm2'])
})

t.test('a long read waits for room, its owner\'s alone, and no other read does', async (t) => {
  const database = await open(t)
  const answer = new PassThrough()
  database.room.open('mallory', answer)(64 * MiB)
  let isRead = false
  const long = database.read(one, [], { owner: 'mallory', isLong: true }).then(() => { isRead = true })
  await database.read(one, [], { owner: 'alice', isLong: true })
  await database.read(one, [], { owner: 'mallory' })
  t.notOk(isRead)
  answer.destroy()
  await long
})

t.test('a read whose answer nobody waits for any more is not sent', async (t) => {
  const database = await open(t)
  const answer = new PassThrough()
  const [first, second] = [1, 2].map(() => database.read(one, [], { owner: 'm', isLong: true, answer }))
  answer.destroy()
  t.strictSame(await first, [['1']])
  await t.rejects(second as Promise<unknown>, { name: 'HTTP_MALFORMED', cause: 'its caller has gone' })
})
