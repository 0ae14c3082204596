// Runs events in random orders on a clock that only the test advances.
import assert from 'node:assert/strict'
import { mock } from 'node:test'
import type { Scheduler } from 'fast-check'
import type { Test } from 'tap'

/** Stops timers, `Date` and `performance.now`. Returns a function that advances all clocks. */
export function stopClock (t: Test): (ms: number) => void {
  mock.timers.enable({ apis: ['setTimeout', 'setInterval', 'setImmediate', 'Date'], now: 5000 })
  const { now } = performance
  performance.now = () => Date.now()
  t.teardown(() => {
    performance.now = now
    mock.timers.reset()
  })
  return (ms) => mock.timers.tick(ms)
}

const { setImmediate } = globalThis

/** Lets all promises settle that wait for nothing else than other promises. */
export const settlePromises = () => new Promise((resolve) => setImmediate(resolve))

const brokenRules: string[] = []

/** Records a broken rule. Code under test would catch an exception. */
export function must (isKept: boolean, rule: string): void {
  if (!isKept) brokenRules.push(rule)
}

/** Mixes the steps, in their order, with the events of the scheduler. Calls `check` after each of them. */
export async function runSteps<Step> (
  s: Scheduler, steps: Step[], run: (step: Step) => void | Promise<void>, check: () => void | Promise<void>
): Promise<void> {
  brokenRules.length = 0
  s.scheduleSequence(steps.map((step) => ({ label: JSON.stringify(step), builder: async () => run(step) })))
  while (s.count() > 0) {
    await s.waitOne()
    await settlePromises()
    mock.timers.tick(0)
    await settlePromises()
    await check()
    assert.deepEqual([...brokenRules], [])
  }
}
