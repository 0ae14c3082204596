// Runs many fuzz cases. Usage: npm run fuzz -- [--seed 1] [--count 20000] [--only <case>]
// If DATABASE_URL is not set, starts a temporary PostgreSQL server.
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import { startEmbedded } from '../../../dev/embedded-postgres.ts'
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

async function startDatabase (): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'plant-store-fuzz-'))
  scope.teardown(() => rm(folder, { recursive: true }))
  // When root runs this program, the user postgres runs the server and needs access to the folder.
  await chmod(folder, 0o755)
  const { url, close } = await startEmbedded(folder)
  scope.teardown(close)
  return url
}

const databaseUrl = process.env.DATABASE_URL ?? await startDatabase()
const seed = Number(values.seed)
const since = performance.now()
console.log(`seed ${seed}`)
const { requests, validRequests, outcomes, violations } = await fuzz(scope, {
  databaseUrl,
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
