// Runs many fuzz cases. Usage: npm run fuzz -- [--seed 1] [--first 0] [--count 20000]
// A message about a case names its index. `--first <index> --count 1` repeats the case.
import { parseArgs } from 'node:util'
import { startPostgres } from '../faults/postgres.ts'
import { fuzz } from './run.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    first: { type: 'string', default: '0' },
    count: { type: 'string', default: '20000' }
  }
})

await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => stack.defer(async () => { await work() }) }
const { url } = await startPostgres(scope)
const seed = Number(values.seed)
const since = performance.now()
console.log(`seed ${seed}`)
const { requests, validRequests, outcomes, violations } =
  await fuzz(scope, url, seed, Number(values.count), Number(values.first))
console.table(outcomes)
console.log(
  `${requests} responses to faulty requests and ${validRequests} to valid ones ` +
    `in ${((performance.now() - since) / 1000).toFixed(0)} s`
)
for (const violation of violations) console.log(`\n${violation}`)
console.log(`${violations.length} violations`)
if (violations.length > 0) process.exitCode = 1
