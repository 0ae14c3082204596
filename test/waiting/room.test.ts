// What waits until what was read before has gone out.
import { PassThrough } from 'node:stream'
import { setImmediate as nextTurn } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { Batch } from '../../src/database/batch.ts'
import { openDatabase } from '../../src/database/database.ts'
import { FairQueue } from '../../src/waiting/fair-queue.ts'
import { createRoom } from '../../src/waiting/room.ts'
import { createDatabase } from '../support/database.ts'

const MiB = 1024 * 1024
const one = { name: 'one', text: 'select 1' }

async function open (t: Test) {
  const database = openDatabase({ url: await createDatabase(t), statementTimeoutMs: 5000, maxWaiting: 1000 })
  t.teardown(() => database.close())
  return database
}

t.test('there is room for an owner until the answers hold a bound, and for each other one a share', async (t) => {
  const room = createRoom(64 * 1024 * 1024)
  const answer = new PassThrough()
  const hold = room.open('mallory', answer)
  hold(63 * MiB)
  t.ok(room.isFor('mallory'))
  hold(64 * MiB)
  t.notOk(room.isFor('mallory'))
  t.ok(room.isFor('alice'))
  room.open('alice', new PassThrough())(31 * MiB)
  t.ok(room.isFor('alice'))
  room.open('alice', new PassThrough())(MiB)
  t.notOk(room.isFor('alice'))
  t.ok(room.isFor('bo'))
  hold(0)
  t.ok(room.isFor('mallory'))
})

t.test('an answer that is over holds nothing, whatever is still read for it', async (t) => {
  const room = createRoom(64 * 1024 * 1024)
  const answer = new PassThrough()
  const hold = room.open('mallory', answer)
  hold(100 * MiB)
  answer.destroy()
  while (!room.isFor('mallory')) await nextTurn()
  hold(100 * MiB)
  t.ok(room.isFor('mallory'))
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

t.test('a batch leaves out who may not go, until they may, and whose caller has gone', async (t) => {
  const held = new Set(['m'])
  const run = async (items: Array<{ owner: string }>) => items.map(({ owner }) => owner)
  const batch = new Batch(run, () => 0, {
    name: 'test',
    maxItems: 10,
    atOnce: 1,
    maxWaiting: 10,
    isWorthRetrying: () => false,
    mayGo: (owner) => !held.has(owner)
  })
  const answer = new PassThrough()
  const [waiting, gone] = [batch.add({ owner: 'm' }), batch.add({ owner: 'm', answer } as { owner: string })]
  t.equal(await batch.add({ owner: 'a' }), 'a')
  // Nothing is under way any more: from here on it looks again.
  for (let turn = 0; turn < 3; turn++) await nextTurn()
  answer.destroy()
  held.clear()
  t.equal(await waiting, 'm')
  await t.rejects(gone, { cause: 'its caller has gone' })
})

t.test('who has gone takes nobody\'s place in a batch', async (t) => {
  const groups: string[][] = []
  const batch = new Batch(async (items: Array<{ owner: string, answer?: PassThrough }>) => {
    groups.push(items.map(({ owner }) => owner))
    return groups
  }, () => 0, { name: 'test', maxItems: 2, atOnce: 1, maxWaiting: 10, isWorthRetrying: () => false })
  const answer = new PassThrough().destroy()
  const gone = ['m', 'n', 'o'].map((owner) => t.rejects(batch.add({ owner, answer }), { cause: 'its caller has gone' }))
  await Promise.all([...gone, ...['a', 'b', 'c'].map((owner) => batch.add({ owner }))])
  t.strictSame(groups, [['a', 'b'], ['c']])
})
