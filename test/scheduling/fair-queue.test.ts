import t from 'tap'
import { FairQueue } from '../../src/scheduling/fair-queue.ts'

function queueOf (items: string[], quantum?: number): FairQueue<string> {
  const queue = new FairQueue<string>(quantum)
  for (const item of items) queue.add(item.charAt(0), item)
  return queue
}

function drain (queue: FairQueue<string>, maxCost?: number): string[] {
  const items: string[] = []
  for (let item; (item = queue.next(maxCost)) !== undefined;) items.push(item)
  return items
}

t.test('users take turns, however many entries one of them has', async (t) => {
  const queue = queueOf(['m1', 'm2', 'm3', 'm4', 'a1', 'b1', 'a2'])
  t.equal(queue.size, 7)
  t.strictSame(drain(queue), ['m1', 'a1', 'b1', 'm2', 'a2', 'm3', 'm4'])
  t.equal(queue.size, 0)
  t.equal(queue.next(), undefined)
})

t.test('a user with expensive entries gets the same cost in a round as the others', async (t) => {
  const queue = new FairQueue<string>(10)
  for (const item of ['m1', 'm2']) queue.add('m', item, 20)
  for (const item of ['a1', 'a2', 'a3', 'a4', 'a5', 'a6']) queue.add('a', item, 5)
  t.strictSame(drain(queue), ['a1', 'a2', 'm1', 'a3', 'a4', 'a5', 'a6', 'm2'])
})

t.test('an entry that costs more than maxCost stays first', async (t) => {
  const queue = new FairQueue<string>()
  queue.add('m', 'large', 100)
  queue.add('m', 'small', 1)
  t.equal(queue.next(99), undefined)
  t.equal(queue.next(100), 'large')
  t.equal(queue.next(1), 'small')
})

t.test('the user with the most entries loses the newest one to a user who has fewer', async (t) => {
  const queue = queueOf(['m1', 'm2', 'm3', 'a1'])
  t.equal(queue.evictFromLargest('m'), undefined)
  t.equal(queue.evictFromLargest('a'), 'm3')
  t.equal(queue.evictFromLargest('a'), undefined)
  t.equal(queue.evictFromLargest('b'), 'm2')
  t.equal(queue.evictFromLargest('b'), undefined)
  t.equal(queue.size, 2)
})

t.test('entries that were queued before a time expire, except those queued at Infinity', async (t) => {
  const queue = new FairQueue<string>()
  queue.add('m', 'new', 1, 20)
  queue.add('m', 'old', 1, 10)
  queue.add('a', 'old, too', 1, 5)
  queue.add('a', 'in progress', 1, Infinity)
  t.strictSame(queue.takeExpired(15), ['old', 'old, too'])
  t.strictSame(drain(queue), ['new', 'in progress'])
})
