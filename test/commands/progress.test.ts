// Tests the progress line of imports and exports.
import { PassThrough } from 'node:stream'
import { mock } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { stripVTControlCharacters } from 'node:util'
import t, { type Test } from 'tap'
import { exportRows } from '../../src/commands/transfer/export.ts'
import { importRows } from '../../src/commands/transfer/import.ts'
import { formatProgress } from '../../src/commands/transfer/progress.ts'
import { plantsTable } from '../../src/plants/plant.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { ndjson } from '../support/transfer.ts'
import { created, ends, openTransfers } from '../support/transfers.ts'

const { url, config, ended, importFile } = await openTransfers(t)

/** Makes standard error a terminal. The returned function lets time pass, and returns what was written. */
function openTerminal (t: Test, columns: number | undefined) {
  t.intercept(process.stderr, 'isTTY', { value: true })
  t.intercept(process.stderr, 'columns', { value: columns })
  const written = t.capture(process.stderr, 'write', () => true)
  mock.timers.enable({ apis: ['setInterval'] })
  t.teardown(() => mock.timers.reset())
  return () => {
    mock.timers.tick(250)
    return written().map(({ args: [text] }) => text).join('')
  }
}

/** Makes statements on plants wait until `unblock` is called. */
async function blockPlants (t: Test) {
  const other = await openSession(t, url, 'begin; lock table plants')
  return {
    async blocked () { while ((await sql(url, waitingForLocks)).length === 0) await delay(10) },
    unblock: () => other.query('commit')
  }
}

t.test('the line tells bytes, plants, their rate, and how much time is left', async (t) => {
  for (const [progress, seconds, text] of [
    [{ kind: 'plants', bytes: 0, rows: 0 }, 1, '0.0 MB, 0 plants, 0 a second'],
    [{ kind: 'plants', bytes: 250_000, totalBytes: 1_000_000, rows: 1500 }, 10,
      '0.3 of 1.0 MB, 1,500 plants, 150 a second, 30 s left'],
    [{ kind: 'plants', bytes: 2e6, rows: 1000, totalRows: 100_000 }, 10,
      '2.0 MB, 1,000 plants, 100 a second, 17 min left'],
    // The total is an estimate.
    [{ kind: 'plants', bytes: 2e6, rows: 1001, totalRows: 1000 }, 10,
      '2.0 MB, 1,001 plants, 100 a second']
  ] as const) t.equal(formatProgress(progress, seconds), text)
})

t.test('an import shows one line on a terminal, and removes it', async (t) => {
  const look = openTerminal(t, 20)
  const { blocked, unblock } = await blockPlants(t)
  const imported = importFile('ann', 'plants.ndjson', ndjson(10_000))
  await blocked()
  t.equal(look(), '\u001B[1G0.5 of 0.5 MB, 0 pl\u001B[0K', 'the line is narrower than the terminal')
  await unblock()
  t.strictSame(await imported, created(10_000))
  t.equal(look(), '\u001B[1G\u001B[0K')
})

t.test('an export shows the plants, and the time that is left if their number is known', async (t) => {
  const look = openTerminal(t, undefined)
  for (const [user, statistics, hasTime] of [
    ['ann', 'select', true], [undefined, 'analyze plants', true],
    [undefined, "update pg_class set reltuples = -1 where oid = 'plants'::regclass", false]
  ] as const) {
    await sql(url, statistics)
    const stdout = new PassThrough()
    t.intercept(process, 'stdout', { value: stdout })
    const exported = ended(() => exportRows(config, plantsTable, user, undefined, {}))
    while (stdout.writableLength === 0) await delay(10)
    const shown = stripVTControlCharacters(look())
    t.match(shown, /^0\.\d MB, [\d,]+ plants, [\d,]+ a second/)
    t.equal(/, \d+ s left$/.test(shown), hasTime, shown)
    stdout.resume()
    t.strictSame(await exported, ends(0, '10000 exported'))
    look()
  }
})

t.test('there is no line without a terminal, or if the plants go to the terminal', async (t) => {
  const look = openTerminal(t, 80)
  for (const [isTTY, terminal] of [[false, undefined], [true, 'stdout'], [true, 'stdin']] as const) {
    const { blocked, unblock } = await blockPlants(t)
    t.intercept(process.stderr, 'isTTY', { value: isTTY })
    const stdout = Object.assign(new PassThrough(), { isTTY: terminal === 'stdout' }).resume()
    const stdin = Object.assign(new PassThrough().end(ndjson(1)), { isTTY: true })
    t.intercept(process, 'stdout', { value: stdout })
    t.intercept(process, 'stdin', { value: stdin })
    const done = ended(() => terminal === 'stdin'
      ? importRows(config, plantsTable, 'bob', undefined, { dryRun: false })
      : exportRows(config, plantsTable, 'ann', undefined, {}))
    await blocked()
    look()
    await unblock()
    await done
  }
  t.notMatch(look(), 'MB')
})
