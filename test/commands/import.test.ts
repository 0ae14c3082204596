// Tests what an import does beside live traffic, with the options, and with unusual files.
import { readFile, stat } from 'node:fs/promises'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { openSession, sql } from '../support/database.ts'
import { ndjson } from '../support/transfer.ts'
import { created, ends, openTransfers } from '../support/transfers.ts'

const { url, folder, importFile, exportFile, stored } = await openTransfers(t, { BODY_LIMIT: '1000' })

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
