import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import fc from 'fast-check'
import t from 'tap'
import { exportPlants } from '../../../src/commands/transfer/export.ts'
import { findFormat, readCsv, readNdjson } from '../../../src/commands/transfer/files.ts'
import { readConfig } from '../../../src/config.ts'
import { createDatabase, sql } from '../../support/database.ts'
import { naughty } from '../../support/naughty.ts'

const text = fc.oneof(
  fc.constantFrom(...naughty), fc.string({ unit: 'binary' }), fc.string({ unit: 'grapheme' }),
  fc.string({ unit: fc.constantFrom('"', ',', '\n', '\r', '\\', ' ', '\uFEFF', '=', 'a') })
).filter((value) => value.isWellFormed() && !value.includes('\0'))
const id = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(String)
const rows = fc.uniqueArray(fc.tuple(id, text, fc.option(text)), { selector: ([id]) => id })

const sizes = fc.array(fc.integer({ min: 3, max: 40 }), { minLength: 1 })

/** Yields `bytes` in chunks. The lengths of the chunks are `sizes`, repeated. */
async function * split (bytes: Buffer, sizes: number[]): AsyncGenerator<Buffer> {
  for (let from = 0, turn = 0; from < bytes.length; turn++) {
    const to = from + (sizes[turn % sizes.length] ?? 1)
    yield bytes.subarray(from, to)
    from = to
  }
}

const DATABASE_URL = await createDatabase(t)
const config = readConfig({ DATABASE_URL })
const folder = t.testdir()

for (const format of ['csv', 'ndjson']) {
  t.test(`the ${format} that export writes has every value`, async (t) => {
    t.capture(console, 'error')
    const file = join(folder, `plants.${format}`)
    const property = fc.asyncProperty(rows, sizes, fc.boolean(), async (rows, sizes, hasMark) => {
      await sql(DATABASE_URL, 'delete from plants where owner = $1', [format])
      await sql(DATABASE_URL, `insert into plants (owner, id, name, tag)
        select $1, * from unnest($2::bigint[], $3::text[], $4::text[])`,
      [format, ...[0, 1, 2].map((column) => rows.map((row) => row[column]))])
      await exportPlants(config, format, file, {})
      const bytes = Buffer.concat([Buffer.from(hasMark ? '\uFEFF' : ''), await readFile(file)])
      const read = []
      const lines = (format === 'csv' ? readCsv : readNdjson)(split(bytes, sizes), 1_000_000, format)
      for await (const line of lines) read.push(line.parse() as Record<string, unknown>)
      const expected = rows.map(([id, name, tag]) => ({ id, name, tag: tag ?? undefined }))
        .toSorted((one, other) => BigInt(one.id) < BigInt(other.id) ? -1 : 1)
      t.strictSame(read.map(({ id, name, tag }) => ({ id: String(id), name, tag })), expected)
    })
    await fc.assert(property, { numRuns: 60 })
  })
}

t.test('the name of a file tells its format, unless the format is given', async (t) => {
  const plain = { isCsv: false, isGzip: false }
  t.strictSame(findFormat(), plain)
  t.strictSame(findFormat('a.csv/b.ndjson'), plain)
  t.strictSame(findFormat('b.csv'), { isCsv: true, isGzip: false })
  t.strictSame(findFormat('b.csv.gz'), { isCsv: true, isGzip: true })
  t.strictSame(findFormat('b.txt', 'ndjson.gz'), { isCsv: false, isGzip: true })
  for (const name of ['b.txt', 'b.gz', 'ndjson', 'b.csv.zip']) {
    t.throws(() => findFormat(name), {
      message: `${name}: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz`
    })
  }
})
