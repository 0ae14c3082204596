import t from 'tap'
import { createDatabase } from '../../support/database.ts'
import { testShutdowns, testStreams } from './streams.ts'

const seed = Date.now() % 1_000_000
const inParallel = { buffered: true }
t.jobs = 2

t.test('what ran is a prefix of what was sent, in order, each once', inParallel, async (t) => {
  t.same(await testStreams(t, await createDatabase(t), { seed, count: 200 }), [])
})

t.test('a shutdown cuts no response, and each executed write has a response', inParallel, async (t) => {
  t.same(await testShutdowns(t, await createDatabase(t), { seed, count: 10 }), [])
})
