import { mock } from 'node:test'
import t from 'tap'
import { ApiError, errors } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'

t.test('however many kinds of faults there are, the log of them is bounded', async (t) => {
  const { app, log } = await startApp(t)
  for (let kind = 0; kind < 150; kind++) {
    app.logbook.note(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: `fault ${kind}` }), app.log, {})
  }
  const lines = log.map((line) => JSON.parse(line)).filter(({ error }) => error === 50301)
  t.equal(lines.length, 101, 'a hundred kinds, and one for all the rest')
})

t.test('a fault is logged in full again when there was none of its kind for ten seconds', async (t) => {
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  const { app, log } = await startApp(t)
  const fault = () => {
    app.logbook.note(new ApiError(errors.DATABASE_UNAVAILABLE, { cause: new Error('gone') }), app.log, {})
  }
  const stacks = () => log.filter((line) => JSON.parse(line).err?.message === 'gone').length
  fault()
  fault()
  mock.timers.tick(9000)
  fault()
  t.equal(stacks(), 1)
  // The first second tells how many there were.
  mock.timers.tick(11_000)
  fault()
  t.equal(stacks(), 2)
})

t.test('a fault without a cause is logged with its own stack', async (t) => {
  const { app, log } = await startApp(t)
  app.logbook.note(new ApiError(errors.INTERNAL), app.log, { method: 'GET', route: '/plants' })
  t.match(JSON.parse(log.at(-1) as string), { level: 'error', error: 50001, err: { stack: /logbook\.test\.ts/ } })
})

t.test('where the log is silent nothing is counted either', async (t) => {
  const { app, log } = await startApp(t, { LOG_LEVEL: 'silent' })
  t.equal((await app.inject('/nowhere')).statusCode, 404)
  t.strictSame(log, [])
})
