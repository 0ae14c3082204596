import { once } from 'node:events'
import { PassThrough } from 'node:stream'
import t from 'tap'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'

const open = () => new PassThrough()

t.test('one user gets at most half of the budget, and the next users half of the rest', async (t) => {
  const budget = new MemoryBudget(120)
  t.notOk(budget.reserve('mallory', 61, open()))
  t.ok(budget.reserve('mallory', 60, open()))
  t.notOk(budget.reserve('mallory', 1, open()))
  t.ok(budget.reserve('alice', 30, open()))
  t.notOk(budget.reserve('alice', 1, open()))
  t.ok(budget.reserve('bo', 15, open()))
})

t.test('many users together never exceed the budget', async (t) => {
  const budget = new MemoryBudget(1000)
  const admitted = Array.from({ length: 500 }, (_, index) => budget.reserve(`user ${index}`, 10, open()))
  t.equal(admitted.filter(Boolean).length, 99)
})

t.test('memory is released when the response ends or is cut', async (t) => {
  const budget = new MemoryBudget(100)
  const [ended, cut] = [open(), open()]
  t.ok(budget.reserve('mallory', 25, ended))
  t.ok(budget.reserve('mallory', 25, cut))
  t.notOk(budget.reserve('mallory', 1, open()))
  ended.end().resume()
  await once(ended, 'close')
  t.ok(budget.reserve('mallory', 25, open()))
  cut.destroy()
  await once(cut, 'close')
  t.ok(budget.reserve('mallory', 25, open()))
  t.notOk(budget.reserve('mallory', 1, open()))
})

t.test('the heap is collected a second after a burst, and not after less', async (t) => {
  const { gc } = globalThis
  t.teardown(() => { globalThis.gc = gc })
  const collected = new Promise((resolve) => { globalThis.gc = resolve as typeof gc })
  const budget = new MemoryBudget(134_217_728)
  for (const bytes of [1024, 16_777_217]) {
    const response = open()
    t.ok(budget.reserve('mallory', bytes, response))
    response.destroy()
    await once(response, 'close')
  }
  // The budget's timer does not keep the test process alive. This timer does.
  const alive = setInterval(() => {}, 100)
  t.strictSame(await collected, { execution: 'async', flavor: 'last-resort' })
  clearInterval(alive)
})
