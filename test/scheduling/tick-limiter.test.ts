import { setImmediate as nextTick } from 'node:timers/promises'
import t from 'tap'
import { TickLimiter } from '../../src/scheduling/tick-limiter.ts'

const KiB = 1024

function startLimiter () {
  const limiter = new TickLimiter()
  const done: string[] = []
  return {
    done,
    run: (name: string, bytes: number) => limiter.run(name.charAt(0), bytes, () => { done.push(name) })
  }
}

t.test('work within the budget of a tick runs at once', async (t) => {
  const { done, run } = startLimiter()
  for (const name of ['a', 'b', 'c', 'd']) run(name, 64 * KiB)
  t.strictSame(done, ['a', 'b', 'c', 'd'])
})

t.test('more work waits for the next tick, and its keys take turns', async (t) => {
  const { done, run } = startLimiter()
  for (const name of ['m1', 'm2', 'm3', 'm4', 'm5']) run(name, 128 * KiB)
  run('a1', 64 * KiB)
  t.strictSame(done, ['m1', 'm2'])
  await nextTick()
  t.strictSame(done, ['m1', 'm2', 'a1', 'm3'])
  await nextTick()
  t.strictSame(done, ['m1', 'm2', 'a1', 'm3', 'm4', 'm5'])
})

t.test('work larger than the budget gets a tick of its own', async (t) => {
  const { done, run } = startLimiter()
  run('large 1', 2048 * KiB)
  run('large 2', 2048 * KiB)
  run('small', KiB)
  t.strictSame(done, ['large 1'])
  await nextTick()
  t.strictSame(done, ['large 1', 'small'])
  await nextTick()
  t.strictSame(done, ['large 1', 'small', 'large 2'])
})

t.test('after idle ticks the whole budget is available again', async (t) => {
  const { done, run } = startLimiter()
  run('a1', 256 * KiB)
  for (let tick = 0; tick < 3; tick++) await nextTick()
  run('a2', 256 * KiB)
  t.strictSame(done, ['a1', 'a2'])
})
