// Tests the progress line of imports and exports.
import { PassThrough } from 'node:stream'
import { mock } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { stripVTControlCharacters } from 'node:util'
import t, { type Test } from 'tap'
import { exportRows } from '../../src/commands/transfer/export.ts'
import { importRows } from '../../src/commands/transfer/import.ts'
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

t.test('an import shows one line on a terminal, and removes it', async (t) => {
  const look = openTerminal(t, 20)
  const { blocked, unblock } = await blockPlants(t)
  const imported = importFile('ann', 'plants.ndjson', ndjson(2000))
  await blocked()
  t.equal(look(), '\r0.1 of 0.1 MB, 0 pl\u001B[K', 'the line is narrower than the terminal')
  await unblock()
  t.strictSame(await imported, created(2000))
  t.equal(look(), '\r\u001B[K')
})

t.test('an export shows how much it has received', async (t) => {
  const look = openTerminal(t, undefined)
  const stdout = new PassThrough()
  t.intercept(process, 'stdout', { value: stdout })
  const exported = ended(() => exportRows(config, plantsTable, 'ann', undefined, {}))
  while (stdout.writableLength === 0) await delay(10)
  t.match(stripVTControlCharacters(look()), /^\r0\.\d MB$/)
  stdout.resume()
  t.strictSame(await exported, ends(0, '2000 exported'))
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
