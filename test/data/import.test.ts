import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { gunzipSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { createDatabase, sql } from '../support/database.ts'
import { naughty } from '../support/naughty.ts'
import { run, unmeasured } from '../support/program.ts'
import { feed } from '../support/transfer.ts'

const DATABASE_URL = await createDatabase(t)
const environment = { DATABASE_URL }
const folder = t.testdir()
const range = (length: number) => Array.from({ length }, (_, index) => index)
const lines = (count: number, from = 0) =>
  range(count).map((index) => `{"id":${from + index},"name":"plant ${index}","tag":"indoor"}\n`).join('')
const stored = async (user: string) => (await sql(DATABASE_URL,
  'select id::text, name, tag from plants where owner = $1 order by plants.id', [user]))
const count = async (user: string) => (await stored(user)).length

/** Writes a file and returns its path. */
async function file (name: string, content: string | Buffer): Promise<string> {
  await writeFile(join(folder, name), content)
  return join(folder, name)
}
const importFile = async (start: typeof run, user: string, name: string, content: string | Buffer, ...options: string[]) =>
  start(['import', ...options, user, await file(name, content)], environment)
const ends = (code: number, ...report: string[]) => ({ code, stdout: '', stderr: `${report.join('\n')}\n` })

t.jobs = 4

t.test('plants come from standard input, and those that exist stay as they are', { buffered: true }, async (t) => {
  const text = '{"id":1,"name":"Fern"}\n\n{"id":2,"name":"","tag":""}\r\n\r\n{"id":1,"name":"Ivy"}'
  t.strictSame(await feed(unmeasured.start, ['import', 'ann'], environment, text),
    ends(0, '2 created, 1 existing, 0 rejected'))
  t.strictSame(await feed(unmeasured.start, ['import', 'ann'], environment, '{"id":2.0,"name":"Oak"}'),
    ends(0, '0 created, 1 existing, 0 rejected'))
  t.strictSame(await stored('ann'), [{ id: '1', name: 'Fern', tag: null }, { id: '2', name: '', tag: '' }])
})

t.test('every format takes every text, with a byte order mark and CRLF, and gives it back', { buffered: true }, async (t) => {
  const plants = naughty.map((name, index) => ({ id: String(-(2n ** 63n) + BigInt(index)), name, tag: index % 3 === 0 ? null : name }))
  const json = plants.map(({ id, name, tag }) => `{"id":${id},"name":${JSON.stringify(name)}${tag === null ? '' : `,"tag":${JSON.stringify(tag)}`}}`)
  const cell = (text: string | null) => text === null ? '' : `"${text.replaceAll('"', '""')}"`
  const csv = ['tag,id,name', ...plants.map(({ id, name, tag }) => [cell(tag), id, cell(name)].join())]
  const contents: Record<string, string | Buffer> = {
    'naughty.ndjson': `\uFEFF${json.join('\r\n')}`,
    'naughty.ndjson.gz': gzipSync(json.join('\n')),
    'naughty.csv': `\uFEFF${csv.join('\r\n')}\r\n\r\n`,
    'naughty.csv.gz': gzipSync(csv.join('\n'))
  }
  for (const [index, [name, content]] of Object.entries(contents).entries()) {
    const start = index % 2 === 0 ? run : unmeasured.run
    t.strictSame(await importFile(start, name, name, content), ends(0, `${naughty.length} created, 0 existing, 0 rejected`))
    t.strictSame(await stored(name), plants, name)
    const out = join(folder, `out.${name}`)
    t.strictSame(await start(['export', name, out], environment), ends(0, `${naughty.length} exported`))
    const again = name.replace('naughty', 'again')
    t.match(await unmeasured.run(['import', again, out], environment), { code: 0 })
    t.strictSame(await stored(again), plants, again)
  }
  const printed = await run(['export', 'naughty.ndjson'], environment)
  t.equal(printed.stdout, json.map((line) => `${line}\n`).join(''), 'nothing but data on standard output')
  t.equal(gunzipSync(await readFile(join(folder, 'out.naughty.ndjson.gz'))).toString(), printed.stdout)
})

const unicode = 'a string of Unicode characters without U+0000.'
const int64 = 'from -9223372036854775808 to 9223372036854775807.'

t.test('a malformed file ends the import, and nothing is stored', { buffered: true }, async (t) => {
  const rejected = '0 created, 0 existing, 1 rejected'
  const failed = '0 created, 0 existing, 0 rejected'
  const header = 'line 1: expected columns of id,name,tag, each once, got '
  const csv = 'malformed, or it has more than 133120 bytes. Expected quotes around a cell with quotes, and each of them twice.'
  const cases: Array<[name: string, content: string | Buffer, report: string[]]> = [
    ['a.ndjson', `${lines(3)}nonsense\n`, ['line 4: The line is not valid JSON.', rejected]],
    ['a.csv', 'id,name\n1,a\nx,b\n', [`line 3: id must be a decimal integer ${int64}`, rejected]],
    ['b.csv', '1,Fern\n', [`${header}1,Fern`, failed]],
    ['c.csv', 'id,name,name\n1,a,b\n', [`${header}id,name,name`, failed]],
    ['d.csv', 'user,id,name\nbob,1,a\n', [`${header}user,id,name`, failed]],
    ['e.csv', 'id,name\n1,5" pot\n', [`line 2: Its quotes are ${csv}`, failed]],
    ['f.csv', `id,name\n1,"${'x\n'.repeat(200_000)}`, [`line 66562: Its quotes are ${csv}`, failed]],
    ['a.ndjson.gz', gzipSync(lines(9)).subarray(0, 60), ['unexpected end of file. The gzip file is truncated.', failed]],
    ['a.csv.gz', 'no gzip', ['incorrect header check. Expected a gzip file.', failed]]
  ]
  for (const [name, content, report] of cases) {
    const start = ['b.csv', 'e.csv', 'a.csv.gz'].includes(name) ? run : unmeasured.run
    t.strictSame(await importFile(start, 'bad', name, content), ends(1, ...report), name)
  }
  t.equal(await count('bad'), 0)
  t.strictSame(await run(['import', 'bad', 'no.ndjson'], environment),
    { code: 1, stdout: '', stderr: "ENOENT: no such file or directory, stat 'no.ndjson'\n" })
})

t.test('each line has to follow the rules of POST', { buffered: true }, async (t) => {
  const rejects = join(folder, 'rules')
  const tables: Record<string, Array<[line: string, reason: string]>> = {
    'rules.ndjson': [
      ['[]', 'The line must be a JSON object with id, name, tag (optional).'],
      ['{"id":2}', `name is missing: expected ${unicode}`],
      ['{"id":9223372036854775808,"name":""}', `id must be ${int64}`],
      ['{"id":"1","name":""}', `id must be an integer ${int64}`],
      ['{"id":1.5,"name":""}', `id must be an integer ${int64}`],
      ['{"id":1,"name":"\\u0000"}', `name must be ${unicode}`],
      ['{"id":1,"name":"\\ud800"}', `name must be ${unicode}`],
      ['{"id":1,"name":"","tag":null}', `tag must be ${unicode}`],
      ['{"id":1,"name":"","__proto__":{}}', 'The line must not have a key "__proto__".'],
      ['{"id":1,"name":"\xff"}', 'The line is not valid UTF-8.'],
      [`{"id":2,"name":"${'x'.repeat(200_000)}"}`, 'The line must not have more than 133120 bytes.'],
      ['{"id":1,"name":"Fern","user":"bob"}', 'user must be absent: use --all for several users.']
    ],
    'rules.csv': [
      ['1,,', `name is missing: expected ${unicode}`],
      [',a,', `id is missing: expected a decimal integer ${int64}`],
      ['1,a', 'The line must have 3 cells.'],
      ['+1,a,', `id must be a decimal integer ${int64}`],
      ['9223372036854775808,a,', `id must be a decimal integer ${int64}`],
      ['1,a\0b,', `name must be ${unicode}`],
      ['1,a,\xff', `tag must be ${unicode}`]
    ]
  }
  for (const [name, table] of Object.entries(tables)) {
    const head = name.endsWith('.csv') ? 'id,name,tag\n' : '{"id":0,"name":"n","other":[1]}\n'
    const content = Buffer.from(head + table.map(([line]) => `${line}\n`).join(''), 'latin1')
    t.strictSame(await importFile(run, 'rules', name, content, '--skip-errors', rejects),
      ends(3, `${name.endsWith('.csv') ? 0 : 1} created, 0 existing, ${table.length} rejected`))
    const written = (await readFile(rejects, 'utf8')).trimEnd().split('\n').map((line) => JSON.parse(line))
    t.strictSame(written.map(({ line, reason }) => [line, reason]),
      table.map(([, reason], index) => [index + 2, reason]))
  }
  t.strictSame(await stored('rules'), [{ id: '0', name: 'n', tag: null }])
})

t.test('--skip-errors stores the other lines and writes the rejected ones to a file', { buffered: true }, async (t) => {
  const rejects = join(folder, 'rejects.ndjson')
  const skip = ['--skip-errors', rejects]
  const read = async () => (await readFile(rejects, 'utf8')).trimEnd().split('\n').map((line) => JSON.parse(line))
  t.strictSame(await importFile(run, 'cat', 's.ndjson', '{"id":1,"name":"a"}\n{"id":2}\n{"id":3,"name":"c"}\n{}', ...skip),
    ends(3, '2 created, 0 existing, 2 rejected'))
  const name = 'name is missing: expected a string of Unicode characters without U+0000.'
  t.match(await read(), [{ line: 2, reason: name, text: '{"id":2}' }, { line: 4, reason: /^id is missing/, text: '{}' }])
  t.strictSame(await importFile(run, 'cat', 's.csv', 'id,name\n1,a\n4\n5,"x, ""y"""\n,b\n', '--strict', ...skip),
    ends(3, '1 created, 0 existing, 3 rejected'))
  t.match(await read(), [
    { line: 3, reason: 'The line must have 2 cells.', text: '4' },
    { line: 5, reason: /^id is missing/, text: ',b' },
    { line: 2, reason: 'The user already has a plant with this id.', text: '1,a' }
  ])
  t.strictSame((await stored('cat')).map(({ id }) => id), ['1', '3', '5'])
  const own = await file('own.ndjson', lines(1))
  t.strictSame(await run(['import', 'cat', own, '--skip-errors', own], environment),
    { code: 1, stdout: '', stderr: '--skip-errors: expected another file than the one to import\n' })
  t.equal(await readFile(own, 'utf8'), lines(1))
  t.match(await unmeasured.run(['import', 'cat', own, '--skip-errors', join(folder, 'no/such')], environment),
    { code: 1, stderr: /^ENOENT/ })
})

t.test('--strict rejects an id that exists, also in the file itself', { buffered: true }, async (t) => {
  await importFile(unmeasured.run, 'dan', 'strict.ndjson', lines(2))
  t.strictSame(await importFile(run, 'dan', 'more.ndjson', lines(3, 1), '--strict'),
    ends(1, 'line 1: The user already has a plant with this id.', '0 created, 0 existing, 1 rejected'))
  t.match(await importFile(unmeasured.run, 'dan', 'twice.ndjson', lines(1, 7) + lines(1, 7), '--strict'),
    { code: 1, stderr: /^line 2: The user already/ })
  t.equal(await count('dan'), 2)
})

t.test('--dry-run counts and stores nothing', { buffered: true }, async (t) => {
  await importFile(unmeasured.run, 'eve', 'dry.ndjson', lines(2))
  t.strictSame(await importFile(run, 'eve', 'dry.ndjson', lines(5), '--dry-run', '--chunk', '2'),
    ends(0, '3 created, 2 existing, 0 rejected; nothing is stored'))
  t.equal(await count('eve'), 2)
})

t.test('--chunk keeps what is committed when a later line is bad', { buffered: true }, async (t) => {
  t.strictSame(await importFile(run, 'fay', 'chunk.ndjson', `${lines(5)}{}\n${lines(5, 5)}`, '--chunk', '2'),
    { code: 1, stdout: '', stderr: 'line 6: id is missing: expected an integer from -9223372036854775808 ' +
      'to 9223372036854775807.\n4 created, 0 existing, 1 rejected; stored up to line 4\n' })
  t.equal(await count('fay'), 4)
  const sizes = await sql(DATABASE_URL, "select count(*)::int as size from plants where owner = 'fay' group by xmin")
  t.strictSame(sizes.map(({ size }) => size), [2, 2])
})

t.test('--rate sends small batches', { buffered: true }, async (t) => {
  await importFile(run, 'gil', 'rate.ndjson', lines(3), '--rate', '30', '--chunk', '100')
  t.equal(await count('gil'), 3)
})

t.test('--all takes the user of each line', { buffered: true }, async (t) => {
  const all = '{"user":"hal 1","id":1,"name":"a"}\n{"user":"hal 2","id":1,"name":"b","tag":""}\n'
  const path = await file('all.ndjson', all)
  t.strictSame(await run(['import', '--all', path], environment), ends(0, '2 created, 0 existing, 0 rejected'))
  t.strictSame([await stored('hal 1'), await stored('hal 2')],
    [[{ id: '1', name: 'a', tag: null }], [{ id: '1', name: 'b', tag: '' }]])
  for (const line of ['{"id":1,"name":"a"}', '{"user":"a\\nb","id":1,"name":"a"}']) {
    t.match(await unmeasured.run(['import', '--all', await file('wrong.ndjson', line)], environment),
      { code: 1, stderr: /^line 1: user (is missing|must be 1 to 255 printable)/ })
  }
  const { stdout } = await run(['export', '--all'], environment)
  t.ok(stdout.includes(all))
  const csv = await unmeasured.run(['export', '--all', '--format', 'csv'], environment)
  t.ok(csv.stdout.startsWith('user,id,name,tag\n'))
  t.ok(csv.stdout.includes('hal 1,1,a,\nhal 2,1,b,""\n'))
})
