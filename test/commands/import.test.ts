// Tests what an import does beside live traffic, with the options, with unusual files, and its progress line.
import { readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { mock } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { stripVTControlCharacters } from 'node:util'
import { gzipSync } from 'node:zlib'
import t, { type Test } from 'tap'
import { exportRows } from '../../src/commands/transfer/export.ts'
import { importRows } from '../../src/commands/transfer/import.ts'
import { plantsTable } from '../../src/plants/plant.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { ndjson } from '../support/transfer.ts'
import { created, ends, openTransfers } from '../support/transfers.ts'

const { url, config, folder, ended, importFile, exportFile, stored } =
  await openTransfers(t, { BODY_LIMIT: '1000' })

t.test('a dry run waits for no transaction, and counts what an import would create now', async (t) => {
  await importFile('ann', 'two.ndjson', ndjson(2))
  const other = await openSession(t, url,
    "begin; insert into plants (owner, id, name) values ('ann', 2, 'Fern')")
  const content = ndjson(4) + ndjson(5)
  t.strictSame(await importFile('ann', 'dry.ndjson', content, { dryRun: true }),
    ends(0, '3 created, 6 existing, 0 rejected; nothing is stored'))
  t.strictSame(await importFile('ann', 'dry.ndjson', content, { dryRun: true, chunk: 4 }),
    ends(0, '3 created, 6 existing, 0 rejected; nothing is stored'), 'in one transaction')
  await other.query('commit')
  t.strictSame(await importFile('ann', 'dry.ndjson', `${content}{}`, { dryRun: true, chunk: 4 }),
    ends(1, 'line 10: id is missing: expected an integer from -9223372036854775808 to 9223372036854775807.',
      '0 created, 0 existing, 1 rejected; nothing is stored'))
  t.equal((await stored('ann')).length, 3)
})

t.test('gzip files may have several members, and nothing else', async (t) => {
  const members = [2, 3].map((count) => gzipSync(ndjson(count)))
  t.strictSame(await importFile('cat', 'members.ndjson.gz', Buffer.concat(members)),
    ends(0, '3 created, 2 existing, 0 rejected'))
  const [first, second] = members as [Buffer, Buffer]
  for (const zeros of [1, 99_999]) {
    for (const rest of [second, Buffer.alloc(0)]) {
      const bytes = Buffer.concat([first, Buffer.alloc(zeros), rest])
      t.strictSame(await importFile('dog', 'zeros.ndjson.gz', bytes),
        ends(1, `The gzip file has other data after byte ${first.length}. ` +
          'Decompress the file first: gzip --decompress --stdout', '0 created, 0 existing, 0 rejected'))
    }
  }
  t.strictSame(await stored('dog'), [])
})

t.test('a plant is not larger than a body, so that an import accepts what an export writes', async (t) => {
  const csv = (count: number) => `id,name\n1,"${'\u0001""'.repeat(count)}"\n`
  // As JSON, each repetition has 8 bytes, and the rest has 11.
  t.strictSame(await importFile('fay', 'large.csv', csv(124)),
    ends(1, 'line 2: The fields must not have more than 1000 bytes as JSON.',
      '0 created, 0 existing, 1 rejected'))
  t.strictSame(await importFile('fay', 'large.csv', csv(123)), created(1))
  await sql(url, "delete from plants where owner <> 'fay'")
  for (const name of ['out.ndjson', 'out.csv']) {
    await exportFile(undefined, name)
    await sql(url, 'delete from plants')
    t.strictSame(await importFile(undefined, name, await readFile(join(folder, name))), created(1))
  }
})

t.test('only the owner can read the file of --skip-errors', async (t) => {
  const skipErrors = join(folder, 'rejects')
  t.match(await importFile('gil', 'bad.ndjson', '{}\n', { skipErrors }), { code: 3 })
  t.equal((await stat(skipErrors)).mode & 0o777, 0o600)
})

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
