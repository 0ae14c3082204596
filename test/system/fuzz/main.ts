// Runs many fuzz cases. Usage: npm run fuzz -- [--seed 1] [--count 20000] [--only <case>]
import { parseArgs } from 'node:util'
import { startPostgres } from '../faults/postgres.ts'
import { fuzz } from './run.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    count: { type: 'string', default: '20000' },
    only: { type: 'string' }
  }
})

await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => stack.defer(async () => { await work() }) }
const { url } = await startPostgres(scope)
const seed = Number(values.seed)
const since = performance.now()
console.log(`seed ${seed}`)
const { requests, validRequests, outcomes, violations } = await fuzz(scope, {
  databaseUrl: url,
  seed,
  count: Number(values.count),
  only: values.only === undefined ? undefined : Number(values.only)
})
console.table(outcomes)
console.log(
  `${requests} responses to faulty requests and ${validRequests} to valid ones ` +
    `in ${((performance.now() - since) / 1000).toFixed(0)} s`
)
for (const violation of violations) console.log(`\n${violation}`)
console.log(`${violations.length} violations`)
if (violations.length > 0) process.exitCode = 1
