import fc from 'fast-check'
import t from 'tap'
import { createWriter, findFormat, readCsv, readNdjson } from '../../src/data/files.ts'
import { naughty } from '../support/naughty.ts'

const text = fc.oneof(
  fc.constantFrom(...naughty), fc.string({ unit: 'binary' }), fc.string({ unit: 'grapheme' }),
  fc.string({ unit: fc.constantFrom('"', ',', '\n', '\r', '\\', ' ', '\uFEFF', '=', 'a') })
).filter((value) => value.isWellFormed())
const id = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n }).map(String)
const row = fc.tuple(id, text, fc.option(text))

const sizes = fc.array(fc.integer({ min: 3, max: 40 }), { minLength: 1 })

/** Yields the bytes in parts that have the given sizes in turn. */
async function * split (bytes: Buffer, sizes: number[]): AsyncGenerator<Buffer> {
  for (let from = 0, turn = 0; from < bytes.length; turn++) {
    const to = from + (sizes[turn % sizes.length] ?? 1)
    yield bytes.subarray(from, to)
    from = to
  }
}

for (const isCsv of [false, true]) {
  t.test(`a round trip in ${isCsv ? 'CSV' : 'NDJSON'} returns every value`, async (t) => {
    const property = fc.asyncProperty(fc.array(row), sizes, fc.boolean(), async (rows, sizes, hasMark) => {
      const [head, write] = createWriter(isCsv, 'alice')
      const bytes = Buffer.from(`${hasMark ? '\uFEFF' : ''}${head}${write(rows)}`)
      const read = []
      const lines = (isCsv ? readCsv : readNdjson)(split(bytes, sizes), 1_000_000, 'alice')
      for await (const line of lines) read.push(line.parse() as Record<string, unknown>)
      const expected = rows.map(([id, name, tag]) => ({ id, name, tag: tag ?? undefined }))
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
