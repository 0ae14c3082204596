// Compares this service with other programs: npm run bench -- [options]
// --only requests,import  --loads list,create,delete,mix  --seconds 5  --rounds 5: the defaults
// --write: replaces the measured sections of docs/performance.md
// Compares this service with another checkout, in which `npm ci` has run:
// BEFORE=<checkout> npm run bench -- --only before [options]
import { availableParallelism } from 'node:os'
import { parseArgs } from 'node:util'
import manifest from '../package.json' with { type: 'json' }
import { before, contenders, found, service, yardstick } from './contenders.ts'
import { compareImports } from './imports.ts'
import { loads as allLoads, type Load } from './load.ts'
import { describeMissed, rateBars, writePlot, writeSection, comparisonTable } from './report.ts'
import { measure, type Sample } from './requests.ts'
import { startPostgres, withClient, type Contender, type Postgres } from './running.ts'

const { values } = parseArgs({
  options: {
    only: { type: 'string', default: 'requests,import' },
    loads: { type: 'string', default: allLoads.join() },
    seconds: { type: 'string', default: '5' },
    rounds: { type: 'string', default: '5' },
    write: { type: 'boolean', default: false }
  }
})
const parts = values.only.split(',')
const loads = values.loads.split(',') as Load[]
const options = { loads, seconds: Number(values.seconds), rounds: Number(values.rounds) }
const { BEFORE } = process.env

function fail (message: string): never {
  console.error(message)
  process.exit(2)
}
if (!loads.every((load) => allLoads.includes(load))) fail(`--loads takes ${allLoads}`)
if (!parts.every((part) => ['requests', 'import', 'before'].includes(part))) {
  fail('--only takes requests, import and before')
}
if (parts.includes('before') && BEFORE === undefined) fail('Set BEFORE to the folder of another checkout.')
if (!found('wrk')) fail('The benchmark needs Linux and wrk, a package of Debian.')

/** Runs the contenders at the same time and measures them in turns. */
async function measureAll (postgres: Postgres, chosen: Contender[]): Promise<Sample[]> {
  await using stack = new AsyncDisposableStack()
  const running = []
  for (const contender of chosen) running.push(stack.use(await postgres.start(contender)))
  return await measure(running, options)
}

await using postgres = await startPostgres()
const version = await withClient(postgres.url('postgres'), async (client) =>
  (await client.query('show server_version')).rows[0].server_version)
const conditions = `Medians of ${options.rounds} rounds [lowest–highest], \
${new Date().toISOString().slice(0, 10)}, version ${manifest.version}: \
${availableParallelism()} cores, PostgreSQL ${version}, Node ${process.version}.`

function show (title: string, section: string) {
  console.log(`\n## ${title}\n\n${section}\n`)
  if (values.write) writeSection(title, section)
}

if (BEFORE !== undefined && parts.includes('before')) {
  const samples = await measureAll(postgres, [service, before(BEFORE)])
  console.log(`\n${comparisonTable(samples)}\n\n${describeMissed(samples)}${conditions}`)
}

if (parts.includes('requests')) {
  const samples = await measureAll(postgres, contenders())
  show('Requests', `![Requests a second](performance.svg)

Each cell divides this service's figure by the other's, in the same round. **Bold**: the other is ahead by
more than 2 % in every round. The processor time of a request includes PostgreSQL's.

${comparisonTable(samples)}

${describeMissed(samples)}${conditions}`)
  const bars = rateBars(samples, yardstick.title)
  if (values.write) writePlot(`Requests a second, ${yardstick.title} = 1`, bars)
}

if (parts.includes('import')) {
  show('Import', await compareImports(postgres, options.rounds))
}
