// Runs many fuzz cases: npm run fuzz -- [--seed 1] [--first 0] [--count 20000]
// A message about a case names its index. `--first <index> --count 1` repeats the case.
//
// Or runs the tests of streams.ts: npm run fuzz -- [--seed 1] [--streams 6000] [--shutdowns 400]
// A message names a seed and a path. `--streams 1 --seed <seed> --path <path>` repeats the run.
import { parseArgs } from 'node:util'
import { startPostgres } from '../faults/postgres.ts'
import { fuzz } from './run.ts'
import { testShutdowns, testStreams } from './streams.ts'

const { values } = parseArgs({
  options: {
    seed: { type: 'string', default: String(Date.now() % 1_000_000) },
    first: { type: 'string', default: '0' },
    count: { type: 'string', default: '20000' },
    streams: { type: 'string' },
    shutdowns: { type: 'string' },
    path: { type: 'string' }
  }
})
const seed = Number(values.seed)

await using stack = new AsyncDisposableStack()
const scope = { teardown: (work: () => unknown) => stack.defer(async () => { await work() }) }
const { url } = await startPostgres(scope)
console.log(`seed ${seed}`)
const violations: string[] = []
if (values.streams !== undefined) {
  const options = { seed, count: Number(values.streams), path: values.path }
  violations.push(...await testStreams(scope, url, options))
}
if (values.shutdowns !== undefined) {
  const options = { seed, count: Number(values.shutdowns), path: values.path }
  violations.push(...await testShutdowns(scope, (await startPostgres(scope)).url, options))
}
if (values.streams === undefined && values.shutdowns === undefined) {
  const report = await fuzz(scope, url, seed, Number(values.count), Number(values.first))
  console.table(report.outcomes)
  console.log(`${report.validRequests} cases as expected`)
  violations.push(...report.violations)
}
for (const violation of violations) console.log(`\n${violation}`)
console.log(`${violations.length} violations`)
process.exitCode = Math.min(violations.length, 1)
