// Makes small changes in src, and runs tests on each change: npm run mutants [-- options]
// CONTRIBUTING.md describes the options and the result.
import { glob, readFile, rm } from 'node:fs/promises'
import { join } from 'node:path'
import { parseArgs } from 'node:util'
import pg from 'pg'
import { endLeftovers } from '../support/processes.ts'
import { createFolder, createTemplate, startServer } from '../support/test-server.ts'
import { createRandom } from '../system/faults/random.ts'
import { createCopy, type Copy } from './copy.ts'
import { listMutants, type Mutant } from './mutate.ts'

const { values: options } = parseArgs({
  options: {
    folder: { type: 'string', multiple: true, default: [] },
    file: { type: 'string', multiple: true, default: [] },
    sample: { type: 'string', default: 'Infinity' },
    seed: { type: 'string', default: '1' },
    jobs: { type: 'string', default: '2' },
    tests: { type: 'string' }
  }
})
const defaults = ['scheduling', 'plants', 'access', 'http', 'database', 'commands']
const folderOf = (file: string) => file.split('/')[1] ?? ''
const list = async (...patterns: string[]) => (await Array.fromAsync(glob(patterns))).sort()

/** Reads the chosen files, and lists a sample of the mutants of each folder. */
async function chooseMutants () {
  const { file, folder } = options
  const folders = folder.length > 0 || file.length > 0 ? folder : defaults
  const files = [...file, ...await list(...folders.map((name) => `src/${name}/**/*.ts`))]
  const sources = new Map<string, string>()
  for (const name of files) sources.set(name, await readFile(name, 'utf8'))
  const all = [...sources].flatMap(([name, source]) => listMutants(name, source))
  const random = createRandom(Number(options.seed))
  const sample = [...Map.groupBy(all, ({ file }) => folderOf(file)).values()]
    .flatMap((mutants) => random.shuffled(mutants).slice(0, Number(options.sample)))
  // Shuffle, so that an interrupted run has judged mutants of all folders.
  return { sources, queue: random.shuffled(sample) }
}

/** Runs the chosen test files without a mutant. Returns their times, and leaves out files that fail. */
async function measureTests (copies: Copy[]): Promise<Map<string, number>> {
  const all = await list('test/*.test.ts', 'test/!(system)/**/*.test.ts')
  const folders = new Set(queue.map(({ file }) => folderOf(file)))
  const pattern = new RegExp(options.tests ?? '.')
  const files = all.filter((name) => pattern.test(name) && (options.tests || folders.has(folderOf(name))))
  const times = new Map<string, number>()
  await Promise.all(copies.map(async (copy) => {
    for (let file = files.shift(); file !== undefined && !stop.signal.aborted; file = files.shift()) {
      const ms = await copy.run(file, 300_000)
      if (ms === undefined) console.log(`# left out, because it fails without a mutant: ${file}`)
      else times.set(file, ms)
    }
  }))
  return times
}

/** Runs the tests until one fails. Without --tests, runs the tests of the mutant's folder. */
async function isKilled (copy: Copy, { file, start, end, text }: Mutant): Promise<boolean> {
  const source = sources.get(file) ?? ''
  await copy.write(file, source.slice(0, start) + text + source.slice(end))
  const tests = [...times].filter(([name]) => options.tests || folderOf(name) === folderOf(file))
  // Start with tests of the mutant's folder, tests that killed other mutants of the file, and short tests.
  const costOf = ([name, ms]: [string, number]) =>
    ms / (1 + (kills.get(`${name} ${file}`) ?? 0)) * (folderOf(name) === folderOf(file) ? 0.1 : 1)
  let found = false
  for (const [name, ms] of tests.sort((a, b) => costOf(a) - costOf(b))) {
    found = await copy.run(name, 3 * ms + 10_000) === undefined
    if (!found) continue
    kills.set(`${name} ${file}`, (kills.get(`${name} ${file}`) ?? 0) + 1)
    break
  }
  await copy.write(file, source)
  return found
}

/** A killed test leaves its databases. No test runs for longer than two minutes. */
async function dropDatabases () {
  const { rows } = await client.query(`select datname from pg_database where datname like 'test%'
    and (pg_stat_file('base/' || oid || '/PG_VERSION')).modification < now() - interval '2 minutes'`)
  for (const { datname } of rows) await client.query(`drop database if exists ${datname} with (force)`)
}

function printResults () {
  results.sort((a, b) => a.file.localeCompare(b.file) || a.start - b.start)
  console.log('\n| folder | mutants | killed | survived | score |\n|---|---|---|---|---|')
  for (const [folder, mutants] of Map.groupBy(results, ({ file }) => folderOf(file))) {
    const killed = mutants.filter(({ killed }) => killed).length
    console.log(`| ${folder} | ${mutants.length} | ${killed} | ${mutants.length - killed} ` +
      `| ${Math.round(100 * killed / mutants.length)} % |`)
  }
  for (const { file, line, from, to } of results.filter(({ killed }) => !killed)) {
    console.log(`\n${file}:${line}\n  - ${from}\n  + ${to}`)
  }
}

const stop = new AbortController()
// After a signal, print the results so far.
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => { stop.abort() })
const results: Array<Mutant & { killed: boolean }> = []
const kills = new Map<string, number>()
const { sources, queue } = await chooseMutants()
const folder = await createFolder()
const server = await startServer(folder)
const client = new pg.Client(server.url)
let times = new Map<string, number>()
try {
  await createTemplate(server)
  await client.connect()
  const copies = await Promise.all(Array.from({ length: Number(options.jobs) }, (_, index) =>
    createCopy(join(folder, String(index)), server.url, stop.signal)))
  times = await measureTests(copies)
  console.log(`# ${times.size} test files, ${queue.length} mutants`)
  const cleaning = setInterval(() => { dropDatabases().catch(console.error) }, 10_000)
  await Promise.all(copies.map(async (copy) => {
    for (let mutant = queue.shift(); mutant !== undefined; mutant = queue.shift()) {
      const killed = await isKilled(copy, mutant)
      if (stop.signal.aborted) return
      results.push({ ...mutant, killed })
    }
  }))
  clearInterval(cleaning)
  printResults()
} finally {
  await client.end()
  await server.close()
  await endLeftovers(folder)
  await rm(folder, { recursive: true, maxRetries: 5 })
}
process.exit()
