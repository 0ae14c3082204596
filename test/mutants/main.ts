// Makes small changes in src, and runs tests on each change: npm run mutants [-- options]
// CONTRIBUTING.md describes the options and the result.
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { cp, glob, mkdir, readdir, readFile, rm, symlink, writeFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { parseArgs } from 'node:util'
import { sql } from '../support/database.ts'
import { endLeftovers } from '../support/processes.ts'
import { table } from '../support/table.ts'
import { createFolder, createTemplate, startServer } from '../support/test-server.ts'
import { createRandom } from '../system/faults/random.ts'
import { listMutants, type Mutant } from './mutate.ts'

const { values: options } = parseArgs({
  options: {
    folder: { type: 'string', multiple: true, default: [] },
    file: { type: 'string', multiple: true, default: [] },
    sample: { type: 'string', default: 'Infinity' },
    seed: { type: 'string', default: '1' },
    tests: { type: 'string' }
  }
})
const folderOf = (file: string) => file.split('/')[1] ?? ''
const list = async (...patterns: string[]) => (await Array.fromAsync(glob(patterns))).sort()

/** Returns a sample of the mutants of each folder. */
async function chooseMutants (): Promise<Mutant[]> {
  const { file, folder, seed, sample } = options
  const folders = folder.length > 0 || file.length > 0 ? folder : ['*']
  const files = await list(...file, ...folders.map((name) => `src/${name}/**/*.ts`))
  const all = await Promise.all(files.map(async (name) => listMutants(name, await readFile(name, 'utf8'))))
  const random = createRandom(Number(seed))
  const samples = [...Map.groupBy(all.flat(), ({ file }) => folderOf(file)).values()]
    .map((mutants) => random.shuffled(mutants).slice(0, Number(sample)))
  // Shuffle, so that an interrupted run has judged mutants of all folders.
  return random.shuffled(samples.flat())
}

/** Copies the work tree into the folder `place`. One test file at a time runs in a copy. */
async function createCopy (place: string) {
  const [tree, temporary] = [join(place, 'tree'), join(place, 'tmp')]
  const isCopied = (path: string) => !/(^|\/)(node_modules|\.git|\.tap|\.data)$/.test(path)
  await cp('.', tree, { recursive: true, filter: isCopied })
  // Link each package. The folder `.cache` is the copy's own, because the cache grows with each mutant.
  await mkdir(join(tree, 'node_modules'))
  for (const name of await readdir('node_modules')) {
    if (name !== '.cache') await symlink(resolve('node_modules', name), join(tree, 'node_modules', name))
  }
  await mkdir(temporary)
  const env = {
    ...process.env,
    TMPDIR: temporary,
    TEST_DATABASE_URL: server.url,
    TAP_BAIL: '1',
    TAP_TIMEOUT: '300',
    // compile-cache.ts uses a cache only with this value.
    _TAPJS_PROCESSINFO_COVERAGE_: '0'
  }

  /** Returns the milliseconds of the test file, or undefined if the file fails or exceeds the timeout. */
  async function run (file: string, timeout: number): Promise<number | undefined> {
    const started = performance.now()
    const child = spawn(process.execPath, ['--import=./test/support/compile-cache.ts', file], {
      cwd: tree, env, detached: true, stdio: 'ignore', timeout, killSignal: 'SIGKILL', signal: stop.signal
    })
    // `once` rejects if the signal ends the child.
    const [code] = await once(child, 'exit').catch(() => [])
    if (code === 0) return Math.ceil(performance.now() - started)
    try {
      // The whole process group, because the test may have started the program.
      process.kill(-Number(child.pid), 'SIGKILL')
    } catch {
      // All processes have ended.
    }
    await endLeftovers(temporary)
    return undefined
  }

  return { run, write: (file: string, source: string) => writeFile(join(tree, file), source) }
}

type Copy = Awaited<ReturnType<typeof createCopy>>

/** Calls `work` for each item, in each copy for one item at a time, until a signal. */
async function forEach<Item> (items: Item[], work: (item: Item, copy: Copy) => Promise<void>) {
  const queue = items.values()
  await Promise.all(copies.map(async (copy) => {
    for (const item of queue) {
      if (!stop.signal.aborted) await work(item, copy)
    }
  }))
}

/** Runs the chosen test files without a mutant. Leaves out files that fail. */
async function measureTests () {
  const folders = new Set(mutants.map(({ file }) => folderOf(file)))
  const pattern = new RegExp(options.tests ?? '.')
  const all = await list('test/*.test.ts', 'test/!(system)/**/*.test.ts')
  const files = all.filter((name) => pattern.test(name) && (options.tests || folders.has(folderOf(name))))
  await forEach(files, async (file, copy) => {
    const ms = await copy.run(file, 300_000)
    if (ms === undefined) console.log(`# left out, because it fails without a mutant: ${file}`)
    else times.set(file, ms)
  })
}

/** Returns the first test that fails. Without --tests, runs the tests of the mutant's folder. */
async function findKiller ({ file, source, text }: Mutant, copy: Copy): Promise<string | undefined> {
  await copy.write(file, text)
  const tests = [...times].filter(([name]) => options.tests || folderOf(name) === folderOf(file))
  // Start with short tests, and with tests that killed other mutants of the file.
  const costOf = ([name, ms]: [string, number]) =>
    ms / (1 + results.filter((result) => result.file === file && result.killer === name).length)
  let killer: string | undefined
  for (const [name, ms] of tests.sort((a, b) => costOf(a) - costOf(b))) {
    killer ??= await copy.run(name, 3 * ms + 10_000) === undefined ? name : undefined
  }
  await copy.write(file, source)
  return killer
}

/** A killed test leaves its databases. No test runs for longer than two minutes. */
async function dropDatabases () {
  const rows = await sql(server.url, `select datname from pg_database where datname like 'test%'
    and (pg_stat_file('base/' || oid || '/PG_VERSION', true)).modification < now() - interval '2 minutes'`)
  for (const { datname } of rows) await sql(server.url, `drop database if exists ${datname} with (force)`)
}

function printResults () {
  results.sort((a, b) => a.file.localeCompare(b.file) || a.line - b.line)
  const survivors = results.filter(({ killer }) => killer === undefined)
  const rows = [...Map.groupBy(results, ({ file }) => folderOf(file))].map(([folder, { length }]) => {
    const survived = survivors.filter(({ file }) => folderOf(file) === folder).length
    return [folder, length, length - survived, survived, `${Math.round(100 * (1 - survived / length))} %`]
  })
  console.log(`\n${table(['folder', 'mutants', 'killed', 'survived', 'score'], rows)}`)
  for (const { file, line, from, to } of survivors) console.log(`\n${file}:${line}\n  - ${from}\n  + ${to}`)
}

const stop = new AbortController()
// After a signal, print the results so far.
for (const signal of ['SIGINT', 'SIGTERM']) process.on(signal, () => { stop.abort() })
/** The milliseconds of each test file. */
const times = new Map<string, number>()
const results: Array<Mutant & { killer: string | undefined }> = []
const mutants = await chooseMutants()
const copies: Copy[] = []
const folder = await createFolder()
const server = await startServer(folder)
try {
  await createTemplate(server)
  for (const name of ['1', '2']) copies.push(await createCopy(join(folder, name)))
  await measureTests()
  console.log(`# ${times.size} test files, ${mutants.length} mutants`)
  await forEach(mutants, async (mutant, copy) => {
    const killer = await findKiller(mutant, copy)
    if (!stop.signal.aborted) results.push({ ...mutant, killer })
    await dropDatabases().catch(console.error)
  })
  printResults()
} finally {
  await server.close()
  await endLeftovers(folder)
  await rm(folder, { recursive: true, maxRetries: 5 })
}
process.exit()
