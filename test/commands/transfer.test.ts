import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { link, readdir, readFile, stat, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { gunzipSync, gzipSync } from 'node:zlib'
import fc from 'fast-check'
import t from 'tap'
import { exportRows } from '../../src/commands/transfer/export.ts'
import {
  createCsvReader, createNdjsonReader, findFormat, type Line
} from '../../src/commands/transfer/files.ts'
import { importRows } from '../../src/commands/transfer/import.ts'
import { ownedTables } from '../../src/domains.ts'
import { plantsTable } from '../../src/plants/plant.ts'
import { anyText } from '../support/any-text.ts'
import { booksTable, createLibrary } from '../support/books.ts'
import { openSession, sql, waitingForLocks } from '../support/database.ts'
import { noPlant } from '../support/error-response.ts'
import { matchEach } from '../support/match.ts'
import { naughty } from '../support/naughty.ts'
import { storePlants } from '../support/plants.ts'
import { asShipped, program, unmeasured } from '../support/program.ts'
import { exampleOf } from '../support/tables.ts'
import { created, ends, openTransfers } from '../support/transfers.ts'

const transfers = await openTransfers(t, { BODY_LIMIT: '131072' })
const { url: DATABASE_URL, config, folder, file, ended, importFile, exportFile, stored } = transfers
const range = (length: number) => Array.from({ length }, (_, index) => index)
const lines = (count: number, from = 0) =>
  range(count).map((index) => `{"id":${from + index},"name":"plant ${index}","tag":"indoor"}\n`).join('')
const execute = promisify(execFile)
const parseLines = (text: string) => text.trimEnd().split('\n').map((line) => JSON.parse(line))

t.test('plants come from standard input, and those that exist stay as they are', async (t) => {
  const text = '{"id":1,"name":"Fern"}\n\n{"id":2,"name":"","tag":""}\r\n\r\n{"id":1,"name":"Ivy"}'
  const { child, ended } = unmeasured.start(['import', 'ann'], { DATABASE_URL })
  child.stdin.end(text)
  t.strictSame(await ended, { code: 0, stdout: '', stderr: '2 created, 1 existing, 0 rejected\n' })
  for (const name of ['a.ndjson', 'a.csv']) t.strictSame(await importFile('ann', name, ''), created(0))
  t.strictSame(await stored('ann'), [{ id: '1', name: 'Fern', tag: null }, { id: '2', name: '', tag: '' }])
})

t.test('every format takes and returns every text, with a byte order mark and CRLF', async (t) => {
  const plants = naughty.map((name, index) =>
    ({ id: String(-(2n ** 63n) + BigInt(index)), name, tag: index % 3 === 0 ? null : name }))
  const json = plants.map(({ id, name, tag }) =>
    `{"id":${id},${JSON.stringify({ name, tag: tag ?? undefined }).slice(1)}`)
  const cell = (text: string | null) => text === null ? '' : `"${text.replaceAll('"', '""')}"`
  const csv = ['tag,id,name', ...plants.map(({ id, name, tag }) => [cell(tag), id, cell(name)].join())]
  const contents: Record<string, string | Buffer> = {
    'naughty.ndjson': `\uFEFF${json.join('\r\n')}`,
    'naughty.ndjson.gz': gzipSync(json.join('\n')),
    'naughty.csv': `\uFEFF${csv.join('\r\n')}\r\n\r\n`,
    'naughty.csv.gz': gzipSync(csv.join('\n')),
    'mac.csv': csv.join('\r')
  }
  for (const [name, content] of Object.entries(contents)) {
    t.strictSame(await importFile(name, name, content), created(naughty.length))
    t.strictSame(await stored(name), plants, name)
  }
  const text = json.map((line) => `${line}\n`).join('')
  for (const [name, decompress] of [['out.ndjson', String], ['out.ndjson.gz', gunzipSync]] as const) {
    t.strictSame(await exportFile('naughty.csv', name), ends(0, `${naughty.length} exported`))
    t.equal(decompress(await readFile(join(folder, name))).toString(), text)
  }
  // Repeats the line of the last plant with another name.
  const reversed = [...json.toReversed(), json.at(-1)?.replace(/"name":"/, '"name":"second ')]
  t.strictSame(await importFile('bob', 'reversed.ndjson', reversed.join('\n')),
    ends(0, `${naughty.length} created, 1 existing, 0 rejected`))
  const inserted = await sql(DATABASE_URL,
    "select id, name, tag from plants where owner = 'bob' order by ctid")
  t.strictSame(inserted, plants, 'the batch is sorted')
  await importFile('mixed', 'mixed.ndjson', json.slice(0, 1).join())
  t.strictSame(await importFile('mixed', 'mixed.ndjson', text),
    ends(0, `${naughty.length - 1} created, 1 existing, 0 rejected`))
  t.strictSame(await stored('mixed'), plants, 'inserted, because one plant exists')
})

t.test('both formats keep each field of each table, whatever its type', async (t) => {
  const library = await createLibrary(t)
  for (const table of [...ownedTables, booksTable]) {
    const { folder, importFile, exportFile } = await openTransfers(t, { DATABASE_URL: library }, table)
    const required = table.fields.filter((field) => table.schema.required?.includes(field))
    const rows = [exampleOf(table, 1), exampleOf(table, 2, required)]
    const lines = rows.map((row) => `${JSON.stringify(row)}\n`).join('')
    t.strictSame(await importFile('first', 'fields.ndjson', lines), created(2))
    for (const user of ['first', undefined]) {
      await exportFile(user, 'fields.csv')
      await sql(library, `delete from ${table.name}`)
      const csv = await readFile(join(folder, 'fields.csv'))
      t.strictSame(await importFile(user, 'again.csv', csv), created(2))
      await exportFile('first', 'again.ndjson')
      t.equal(await readFile(join(folder, 'again.ndjson'), 'utf8'), lines)
    }
  }
})

t.test('a cell of CSV with a number or a boolean follows the rules of JSON', async (t) => {
  const { importFile, exportFile, folder } =
    await openTransfers(t, { DATABASE_URL: await createLibrary(t) }, booksTable)
  const row = { id: 1, subTitle: 'true', title: '1', weight: 1e-7, pages: 0, isLent: false }
  const csv = 'id,subTitle,title,weight,pages,isLent\n1,true,1,1E-7,0,false\n'
  t.strictSame(await importFile('ann', 'ok.csv', csv), created(1))
  await exportFile('ann', 'ok.ndjson')
  t.strictSame(JSON.parse(await readFile(join(folder, 'ok.ndjson'), 'utf8')), row)
  for (const [field, cell] of [
    ['pages', '0x10'], ['pages', '01'], ['pages', '1.5'], ['weight', 'NaN'], ['isLent', 't'], ['isLent', '1']
  ]) {
    const { report } = await importFile('bob', 'bad.csv', `id,title,${field}\n1,a,${cell}\n`)
    t.match(report[0], `line 2: ${field} is not valid: Expected `, `${field} ${cell}`)
  }
})

const advice = 'Convert the file: see "Files of other programs" in docs/data.md.'
const int64 = 'from -9223372036854775808 to 9223372036854775807.'
const integer = `integer ${int64.slice(0, -1)}, without + or leading zeros.`

t.test('a malformed file or an error of the database ends the import, and nothing is stored', async (t) => {
  // Rejects only the first weed, so a second attempt would store it.
  await sql(DATABASE_URL, `create sequence weeds;
    alter table plants add constraint no_weeds check (name <> 'weed' or nextval('weeds') > 1)`)
  t.teardown(() => sql(DATABASE_URL, 'drop sequence weeds cascade'))
  const rejected = '0 created, 0 existing, 1 rejected'
  const failed = '0 created, 0 existing, 0 rejected'
  const columns = ['id', ...plantsTable.fields].join()
  const header =
    `line 1: expected columns of ${columns}, each once, with commas between them and in UTF-8, got `
  const gzipAdvice = 'incorrect header check. ' +
    'The file is no gzip file, is damaged, or has other data after its end.'
  const opening = 'Invalid Opening Quote: a quote is found on field 1 at line 2, value is "5".'
  const cells =
    `Expected commas between the cells, cells like "5"" pot", and at most 133120 bytes. ${advice}`
  const closing = (got: string, line: number) =>
    `line ${line}: Invalid Closing Quote: got "${got}" at line ${line} instead of delimiter, ` +
    `record delimiter, trimable character (if activated) or comment. ${cells}`
  const open = 'Quote Not Closed: the parsing is finished with an opening quote at line 5.'
  const size = 'Max Record Size: record exceed the maximum number of tolerated bytes of 133120 at line 66562.'
  const cases: Array<[name: string, content: string | Buffer, report: string[]]> = [
    ['a.ndjson', `${lines(3)}nonsense\n`, [
      'line 4: The line is not valid JSON: Unexpected token \'o\', "nonsense" is not valid JSON.', rejected
    ]],
    ['a.csv', 'id,name\n1,a\nx,b\n', [`line 3: id must be a decimal ${integer}`, rejected]],
    ['b.csv', '1,Fern\n', [`${header}"1","Fern". ${advice}`, failed]],
    ['c.csv', 'id,name,name\n1,a,b\n', [`${header}"id","name","name". ${advice}`, failed]],
    ['d.csv', 'user,id,name\nbob,1,a\n', [`${header}"user","id","name". ${advice}`, failed]],
    ['d.csv', 'id,name,\n1,a,b\n', [`${header}"id","name","". ${advice}`, failed]],
    ['d.csv', 'id,name ,tag\n1,a,b\n', [`${header}"id","name ","tag". ${advice}`, failed]],
    ['d.csv', 'id;name\n1;a\n', [`${header}"id;name". ${advice}`, failed]],
    ['d.csv', '\uFEFF"id";"name"\n', [closing(';', 1), failed]],
    ['d.csv', Buffer.from('id,name\n1,a\n2,Bl\xfcte\n', 'latin1'),
      [`line 3: The line is not valid UTF-8. ${advice}`, rejected]],
    ['d.csv', `id,\u001B[31m${'x'.repeat(200)}\n`,
      [`${header}"id","\\u001b[31m${'x'.repeat(84)}…. ${advice}`, failed]],
    ['e.csv', 'id,name\n1,5" pot\n', [`line 2: ${opening} ${cells}`, failed]],
    ['e.csv', 'id,name\r\n1,"5" pot\n', [closing(' ', 2), failed]],
    ['e.csv', 'id,name\n1,"\r\n5"\n2,"5 pot', [`line 4: ${open} ${cells}`, failed]],
    ['f.csv', `id,name\n1,"${'x\n'.repeat(200_000)}"`, [`line 2: ${size} ${cells}`, failed]],
    ['a.ndjson.gz', gzipSync(lines(9)).subarray(0, 60),
      ['unexpected end of file. The gzip file is truncated.', failed]],
    ['a.csv.gz', 'no gzip', [gzipAdvice, failed]],
    ['b.ndjson.gz', Buffer.concat([gzipSync(lines(9)), Buffer.from('junk')]), [gzipAdvice, failed]],
    ['utf16.csv', Buffer.from('id\n', 'utf16le'), [`${header}"i\\u0000d\\u0000". ${advice}`, failed]],
    ['utf16.ndjson', Buffer.from('\uFEFF{"id":1}', 'utf16le').swap16(),
      [`line 1: The line is not valid UTF-8. ${advice}`, rejected]],
    ['g.csv', 'id,name\n1,Fern\n2,weed\n',
      ['new row for relation "plants" violates check constraint "no_weeds"', failed]]
  ]
  for (const [name, content, report] of cases) {
    t.strictSame(await importFile('bad', name, content), ends(1, ...report), name)
  }
  t.strictSame(await stored('bad'), [])
  const missing = () => importRows(config, plantsTable, 'bad', 'no.ndjson', { dryRun: false })
  t.strictSame(await ended(missing), ends(1, "ENOENT: no such file or directory, open 'no.ndjson'"))
})

t.test('each line has to follow the rules of POST', async (t) => {
  const rejects = join(folder, 'rules')
  const tables: Array<[name: string, head: string, table: Array<[line: string, reason: string]>]> = [
    ['rules.ndjson', '{"id":0,"name":"n","other":[1]}', [
      ['[]', noPlant[1].replace('body', 'line')],
      ['{"id":2}', 'name is missing: expected a string.'],
      ['{"id":"1","name":""}', `id must be an integer ${int64}`],
      ['{"id":1,"name":"","__proto__":{}}', 'The line must not have a key "__proto__".'],
      ['{"id":1,"name":"\xff"}', `The line is not valid UTF-8. ${advice}`],
      [`{"id":2,"name":"${'x'.repeat(200_000)}"}`, 'The line must not have more than 133120 bytes.'],
      ['{"id":1,"name":"Fern","user":"bob"}', 'user must be absent, or use --all.']
    ]],
    ['rules.csv', 'id,name,tag', [
      ['1,,', 'name is missing: expected a string.'],
      [',a,', `id is missing: expected a decimal ${integer}`],
      ['1,a', 'The line must have 3 cells.'],
      ['+1,a,', `id must be a decimal ${integer}`],
      ['1,a,\xff', `The line is not valid UTF-8. ${advice}`],
      ['1,a\0b,', 'name must be a string without U+0000.']
    ]]
  ]
  for (const [name, head, table] of tables) {
    const content = Buffer.from([head, ...table.map(([line]) => line)].join('\n'), 'latin1')
    t.strictSame(await importFile('rules', name, content, { skipErrors: rejects }),
      ends(3, `${name === 'rules.csv' ? 0 : 1} created, 0 existing, ${table.length} rejected`))
    const written = parseLines(await readFile(rejects, 'utf8'))
    t.strictSame(written.map(({ line, reason }) => [line, reason]),
      table.map(([, reason], index) => [index + 2, reason]))
  }
  t.strictSame(await stored('rules'), [{ id: '0', name: 'n', tag: null }])
})

t.test('--skip-errors stores the other lines and writes the rejected ones to a file', async (t) => {
  const skipErrors = await file('rejects', 'old\n')
  const csv = 'id,name\n1,a\n4\n5,"x, ""y"""\n,"b\n"\n'
  t.strictSame(await importFile('cat', 's.csv', csv, { skipErrors }),
    ends(3, '2 created, 0 existing, 2 rejected'))
  matchEach(t, parseLines(await readFile(skipErrors, 'utf8')), [
    { line: 3, reason: 'The line must have 2 cells.', text: '"4"' },
    { line: 6, reason: /^id is missing/, text: ',"b\n"' }
  ])
  t.strictSame((await stored('cat')).map(({ id }) => id), ['1', '5'])
  t.match(await importFile('cat', 's.csv', csv, { skipErrors: '/dev/null' }), { code: 3 })
  t.match(await importFile('cat', 's.csv', csv, { skipErrors: join(folder, 'no/such') }),
    { code: 1, report: [/^ENOENT/] })
  t.intercept(String.prototype, 'isWellFormed', { value () { throw new Error('a defect') } })
  t.strictSame(await importFile('cat', 's.csv', csv, { skipErrors }),
    ends(1, 'a defect', '0 created, 0 existing, 0 rejected'))
})

t.test('--skip-errors never empties the file that is imported', async (t) => {
  const input = await file('input.ndjson', '{}\n')
  const same = '--skip-errors: expected another file than the one to import'
  for (const [name, create] of [['symbolic', symlink], ['hard', link]] as const) {
    const skipErrors = join(folder, name)
    await create(input, skipErrors)
    t.strictSame(await importFile('cat', 'input.ndjson', '{}\n', { skipErrors }), ends(1, same))
    t.equal(await readFile(input, 'utf8'), '{}\n')
  }
  const words = [...asShipped, `DATABASE_URL=${DATABASE_URL}`, 'sh', '-c']
  const fromInput = `${program.join(' ')} import cat --skip-errors ${input} < ${input}`
  await t.rejects(execute('env', [...words, fromInput]), { code: 1, stderr: `${same}\n` })
  t.equal(await readFile(input, 'utf8'), '{}\n')
})

t.test('an export overwrites no other file, and replaces no device', async (t) => {
  await importFile('jan', 'jan.ndjson', lines(1))
  const valuable = await file('valuable', 'valuable')
  const target = join(folder, 'target.ndjson')
  await symlink(valuable, `${target}.part`)
  await symlink(valuable, target)
  t.match(await exportFile('jan', 'target.ndjson'), { code: 0 })
  t.equal(await readFile(valuable, 'utf8'), 'valuable')
  t.equal(await readFile(target, 'utf8'), lines(1))
  const pipe = join(folder, 'pipe.ndjson')
  await execute('mkfifo', [pipe])
  t.strictSame(await exportFile('jan', 'pipe.ndjson'),
    ends(1, `${pipe}: expected a regular file. Use a pipe to standard input or output instead.`))
  t.ok((await stat(pipe)).isFIFO())
})

t.test('an export that loses its connection leaves no file', async (t) => {
  const other = await openSession(t, DATABASE_URL, 'begin; lock table plants')
  const exported = exportFile(undefined, 'lost.ndjson')
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await sql(DATABASE_URL, end)).length === 0);
  t.strictSame(await exported, ends(1, 'terminating connection due to administrator command'))
  await other.query('commit')
  t.strictSame((await readdir(folder)).filter((name) => name.startsWith('lost')), [])
})

t.test('plants that exist stay as they are, and the others are stored unless --dry-run is set', async (t) => {
  await importFile('dan', 'some.ndjson', lines(2))
  t.strictSame(await importFile('dan', 'more.ndjson', lines(3, 1) + lines(1, 7) + lines(1, 7)),
    ends(0, '3 created, 2 existing, 0 rejected'))
  t.strictSame(await importFile('dan', 'next.ndjson', lines(9, 7), { chunk: 3 }),
    ends(0, '8 created, 1 existing, 0 rejected'))
  t.strictSame(await importFile('dan', 'dry.ndjson', lines(16), { dryRun: true, chunk: 2 }),
    ends(0, '3 created, 13 existing, 0 rejected; nothing is stored'))
  const ids = (await stored('dan')).map(({ id }) => Number(id))
  t.strictSame(ids, [0, 1, 2, 3, ...range(9).map((id) => id + 7)])
})

t.test('--chunk keeps what is committed when a later line is bad', async (t) => {
  const report = `line 6: id is missing: expected an integer ${int64}`
  t.strictSame(await importFile('fay', 'chunk.ndjson', `${lines(5)}{}\n${lines(5, 5)}`, { chunk: 2 }),
    ends(1, report, '4 created, 0 existing, 1 rejected; stored up to line 4'))
  const sizes = await sql(DATABASE_URL,
    "select count(*)::int as size from plants where owner = 'fay' group by xmin")
  t.strictSame(sizes.map(({ size }) => size), [2, 2])
})

t.test('large plants make small batches', async (t) => {
  const large = range(20).map((id) => `{"id":${id},"name":"${'x'.repeat(130_000)}"}\n`).join('')
  t.match(await importFile('ida', 'large.ndjson', large), { code: 0 })
  t.match(await exportFile('ida', 'large.out.ndjson'), { code: 0 })
  t.equal(await readFile(join(folder, 'large.out.ndjson'), 'utf8'), large)
})

t.test('a file of all users names the user in each line', async (t) => {
  await sql(DATABASE_URL, 'delete from plants')
  const all = '{"user":"hal 1","id":1,"name":"a"}\n{"user":"hal 2","id":1,"name":"b","tag":""}\n'
  t.strictSame(await importFile(undefined, 'all.ndjson', all), created(2))
  for (const line of ['{"id":1,"name":"a"}', '{"user":"a\\nb","id":1,"name":"a"}']) {
    t.match(await importFile(undefined, 'wrong.ndjson', line),
      { code: 1, report: [/^line 1: user (is missing|must be 1 to 255 printable)/] })
  }
  for (const [format, text] of [
    ['ndjson', all], ['csv', /^user,id,name,tag\b[^]*\nhal 1,1,a,[^]*\nhal 2,1,b,""/]
  ] as const) {
    t.match(await exportFile(undefined, format, { format }), { code: 0 })
    t.match(await readFile(join(folder, format), 'utf8'), text)
  }
  const { report } = await importFile(undefined, 'all.csv', await readFile(join(folder, 'csv')))
  t.strictSame(report, ['0 created, 2 existing, 0 rejected'])
})

t.test('an export of an unknown user fails, and leaves an existing file as it is', async (t) => {
  const path = await file('typo.ndjson', 'old')
  t.strictSame(await exportFile('typo', 'typo.ndjson'),
    ends(1, 'There are no plants of typo. The command user list shows all users.'))
  t.equal(await readFile(path, 'utf8'), 'old')
})

t.test('a line number counts the line ends within cells', async (t) => {
  for (const lineEnd of ['\n', '\r', '\r\n']) {
    const text = ['id,name', '1,"a', 'b', 'c"', '', '2,'].join(lineEnd)
    const { report } = await importFile('ann', 'lines.csv', text)
    t.match(report, [/^line 6: name is missing/], JSON.stringify(lineEnd))
  }
})

t.test('an export to a folder that does not exist fails with one line', async (t) => {
  const { report, code } = await exportFile('ann', 'missing/ann.ndjson')
  t.match(report, [/^ENOENT: no such file or directory, open /])
  t.equal(code, 1)
})

const text = fc.oneof(
  fc.constantFrom(...naughty), anyText,
  fc.string({ unit: fc.constantFrom('"', ',', '\n', '\r', '\\', ' ', '\uFEFF', '=', 'a') })
).filter((value) => value.isWellFormed() && !value.includes('\0'))
const id = fc.bigInt({ min: -(2n ** 63n), max: 2n ** 63n - 1n })
const plant = fc.tuple(id, text, fc.option(text, { nil: undefined }))
  .map(([id, name, tag]) => ({ id, name, tag }))
const plants = fc.uniqueArray(plant, { minLength: 1, selector: ({ id }) => id })

const escapes = `${String.fromCharCode(...range(255).map((code) => code + 1))}\\v\\N\\`
const known = [escapes, ...naughty].map((name, index) => ({ id: BigInt(index), name, tag: '\\N' }))
const sizes = fc.array(fc.integer({ min: 3, max: 40 }), { minLength: 1 })

/** Yields chunks with these sizes, repeated. */
function * split (bytes: Buffer, sizes: number[]): Generator<Buffer> {
  for (let from = 0, turn = 0; from < bytes.length; turn++) {
    const to = from + (sizes[turn % sizes.length] as number)
    yield bytes.subarray(from, to)
    from = to
  }
}

const readers = {
  csv: (take: (line: Line) => void) => createCsvReader(1_000_000, plantsTable, 'csv', take),
  ndjson: (take: (line: Line) => void) => createNdjsonReader(1_000_000, take)
}
for (const [format, createReader] of Object.entries(readers)) {
  t.test(`the ${format} that export writes has every value`, async (t) => {
    t.capture(console, 'error')
    const path = join(folder, `plants.${format}`)
    await fc.assert(fc.asyncProperty(plants, sizes, fc.boolean(), async (plants, sizes, hasMark) => {
      await sql(DATABASE_URL, 'delete from plants where owner = $1', [format])
      await storePlants(DATABASE_URL, format, plants)
      await exportRows(config, plantsTable, format, path, {})
      const bytes = Buffer.concat([Buffer.from(hasMark ? '\uFEFF' : ''), await readFile(path)])
      const found: Array<Record<string, unknown>> = []
      const read = createReader((line) => found.push(line.parse() as Record<string, unknown>))
      for (const chunk of split(bytes, sizes)) await read(chunk)
      await read()
      const inOrder = plants.toSorted((one, other) => one.id < other.id ? -1 : 1)
      assert.deepEqual(found.map(({ id, name, tag }) => ({ id: BigInt(String(id)), name, tag })), inOrder)
    }), { numRuns: 10, examples: [[known, [97], false]] })
  })
}

t.test('the name of a file tells its format, unless the format is given', async (t) => {
  t.strictSame(findFormat('a.csv/b.ndjson'), { isCsv: false, isGzip: false })
  t.strictSame(findFormat('b.csv', 'ndjson.gz'), { isCsv: false, isGzip: true })
  for (const name of ['b.txt', 'b.gz', 'ndjson', 'b.csv.zip']) {
    t.throws(() => findFormat(name), {
      message: `${name}: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz`
    })
  }
})
