// Runs many fuzz cases. Usage: npm run fuzz -- [--seed 1] [--first 0] [--count 20000]
// A message about a case names its index. `--first <index> --count 1` repeats the case.
import { parseArgs } from 'node:util'
import { startPostgres } from '../faults/postgres.ts'
import { fuzz } from './run.ts'

const { values: { seed, first, count } } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    first: { type: 'string', default: '0' },
    count: { type: 'string', default: '20000' }
  }
})

await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => stack.defer(async () => { await work() }) }
const { url } = await startPostgres(scope)
console.log(`seed ${seed}`)
const { validRequests, outcomes, violations } =
  await fuzz(scope, url, Number(seed), Number(count), Number(first))
console.table(outcomes)
for (const violation of violations) console.log(`\n${violation}`)
console.log(`${validRequests} cases as expected, ${violations.length} violations`)
process.exitCode = Math.min(violations.length, 1)
