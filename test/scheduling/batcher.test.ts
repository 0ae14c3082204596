import t from 'tap'
import { Batcher } from '../../src/scheduling/batcher.ts'

interface Item { user: string, value: number }

const together = { name: 'test', limits: () => ({ maxItems: 10, maxInFlight: 1 }), maxQueued: 100 }
const items = [1, 2, 3].map((value) => ({ user: 'alice', value }))
const failure = new Error('two is not allowed')

/** A batch that contains the value 2 fails. */
function startBatcher (options: { isRetryable: boolean, runAlone?: (item: Item) => Promise<number> }) {
  const batches: number[][] = []
  const batcher = new Batcher<Item, number>(async (items) => {
    const values = items.map(({ value }) => value)
    batches.push(values)
    if (values.includes(2)) throw failure
    return values.map((value) => value * 10)
  }, { ...together, ...options, isRetryable: () => options.isRetryable })
  return { batches, add: (item: Item) => batcher.add(item).catch((error) => error) }
}

t.test('items that arrive together share a batch, and each gets its result', async (t) => {
  const { batches, add } = startBatcher({ isRetryable: false })
  t.strictSame(await Promise.all([1, 3].map((value) => add({ user: 'alice', value }))), [10, 30])
  t.strictSame(batches, [[1, 3]])
})

t.test('after an error that may concern one item, each item is retried alone once', async (t) => {
  const { batches, add } = startBatcher({ isRetryable: true })
  t.strictSame(await Promise.all(items.map(add)), [10, failure, 30])
  t.strictSame(batches, [[1, 2, 3], [1], [2], [3]])
})

t.test('after any other error all items of the batch fail', async (t) => {
  const { batches, add } = startBatcher({ isRetryable: false })
  t.strictSame(await Promise.all(items.map(add)), [failure, failure, failure])
  t.strictSame(batches, [[1, 2, 3]])
})

t.test('the option runAlone retries single items', async (t) => {
  const runAlone = async ({ value }: Item) => {
    if (value === 2) throw failure
    return value * 100
  }
  const { batches, add } = startBatcher({ isRetryable: true, runAlone })
  t.strictSame(await Promise.all(items.map(add)), [100, failure, 300])
  t.strictSame(batches, [[1, 2, 3]])
})
