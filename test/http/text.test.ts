import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'

const nameExpectation = 'name must be a string of Unicode characters without U+0000.'
const tagExpectation = 'tag must be a string of Unicode characters without U+0000.'

const missing = 'name is missing: expected a string of Unicode characters without U+0000.'

const { app, as, url } = await startApp(t)
const alice = await as('alice')

const createRaw = (payload: string | Buffer) => app.inject({
  method: 'POST',
  url: '/plants',
  headers: { authorization: alice.authorization, 'content-type': 'application/json' },
  payload
})
const stored = () => sql(url,
  'select name, tag, encode(convert_to(name, \'UTF8\'), \'hex\') as name_bytes from plants order by id')

t.afterEach(() => sql(url, 'delete from plants'))

t.test('valid text comes back unchanged, byte for byte', async (t) => {
  const texts = [
    '', ' ', '   leading and trailing   ', '\t', '\r\n', '\u0001', '\u001F', '\u007F', '\u0080\u0085\u009F',
    '\u00A0\u2003\u3000',
    '😀', '👩‍👩‍👧‍👦', '🏳️‍🌈', '𝕏', '\u{10FFFF}', '\uFFFD', '\uFFFE\uFFFF', '\uFEFFwith a mark\uFEFF',
    '\u2028\u2029', '\uE000',
    'é', 'e\u0301', 'Ǆ', 'ﬁ', 'İi̇ıI', 'ß', 'Å\u212B', '가\u1100\u1161',
    'שלום עולם', 'مرحبا \u202Eabc\u202C', '\u200B\u200C\u200D\u2060', '漢字', 'नमस्ते',
    '"', '\\', '\\"', "'", "'; drop table plants; --", "' or '1'='1", '$1', '$$', '{}', '{"a":1}', '[null]',
    '\\u0000', '\\x00', 'null', '%00', '%s', '<script>alert(1)</script>', '__proto__', 'constructor', '\\N',
    'NULL',
    'a'.repeat(60_000), '😀'.repeat(15_000), 'e\u0301'.repeat(20_000), '"\\'.repeat(15_000)
  ]
  for (const [id, name] of texts.entries()) {
    const created = await alice.create({ id, name, tag: name })
    t.match({ status: created.statusCode, same: created.body === JSON.stringify({ name, tag: name }) },
      { status: 200, same: true }, encodeURI(name).slice(0, 40))
  }
  t.same((await alice.list()).json(), texts.map((name) => ({ name, tag: name })))
  t.same(await stored(),
    texts.map((name) => ({ name, tag: name, name_bytes: Buffer.from(name).toString('hex') })))
})

t.test('an escape in the body becomes its character', async (t) => {
  await createRaw('{"id":1,"name":"\\u0041\\n\\/\\b\\f\\t\\r\\"\\\\","tag":"\\uD83D\\uDE00\\u00e9"}')
  t.same((await alice.list()).json(), [{ name: 'A\n/\b\f\t\r"\\', tag: '😀é' }])
})

t.test('an absent tag stays absent, and an empty tag stays empty', async (t) => {
  t.equal((await alice.create({ id: 1, name: 'n' })).body, '{"name":"n"}')
  t.equal((await alice.create({ id: 2, name: 'n', tag: '' })).body, '{"name":"n","tag":""}')
  t.equal((await alice.list()).body, '[{"name":"n"},{"name":"n","tag":""}]')
})

t.test('text that is not Unicode or that PostgreSQL cannot store is rejected', async (t) => {
  const texts = [
    '\\u0000', 'a\\u0000b', 'end\\u0000', '\\ud800', '\\uDBFF', '\\udc00', '\\uDFFF', 'a\\ud83d', '\\ud83dz',
    '\\ude00\\ud83d', '\\ud83d\\ud83d\\ude00', '😀\\ud83d', '\\ud83d\\u0000'
  ]
  for (const text of texts) {
    isError(t, await createRaw(`{"id":1,"name":"${text}"}`), 40012, nameExpectation, text)
    isError(t, await createRaw(`{"id":1,"name":"n","tag":"${text}"}`), 40012, tagExpectation, text)
  }
  t.same(await stored(), [])
})

t.test('a name or a tag that is not a string is rejected, not converted', async (t) => {
  for (const value of [
    'null', 'true', 'false', '0', '1.5', '1e999', '-1e999', '9007199254740993', '[]', '["n"]', '{}',
    '{"name":"n"}'
  ]) {
    isError(t, await createRaw(`{"id":1,"name":${value}}`), 40012, nameExpectation, value)
    isError(t, await createRaw(`{"id":1,"name":"n","tag":${value}}`), 40012, tagExpectation, value)
  }
  isError(t, await createRaw('{"id":1}'), 40011, missing)
  isError(t, await createRaw('{"id":1,"Name":"n","tag":"t"}'), 40011, missing)
  t.same(await stored(), [])
})

t.test('bytes that are not UTF-8 are rejected at any position', async (t) => {
  const sequences = [
    '80', 'bf', 'c0af', 'c080', 'c1bf', 'c3', 'c328', 'e08080', 'e282', 'e28228', 'eda080', 'edbfbf',
    'eda0bdedb880', 'f0808080', 'f09f98', 'f4908080', 'f8888080', 'fe', 'ff', 'e9'
  ]
  for (const hex of sequences) {
    const bytes = Buffer.from(hex, 'hex')
    const around = (before: string, after: string) =>
      Buffer.concat([Buffer.from(before), bytes, Buffer.from(after)])
    for (const body of [
      around('{"id":1,"name":"', '"}'), around('{"id":1,"name":"n","tag":"é', 'é"}'),
      around('{"id":1,"name":"n","', '":1}'), around('', '{"id":1,"name":"n"}'),
      around('{"id":1,"name":"n"}', '')
    ]) {
      isError(t, await createRaw(body), 40007, 'The body is not valid UTF-8.', hex)
    }
  }
  for (const encoding of ['utf16le', 'latin1'] as const) {
    isError(t, await createRaw(Buffer.from('\uFEFF{"id":1,"name":"é"}', encoding)), 40007,
      'The body is not valid UTF-8.', encoding)
  }
  t.same(await stored(), [])
})

t.test('unescaped control characters in a string are rejected', async (t) => {
  for (const char of ['\0', '\n', '\t', '\u001F']) {
    isError(t, await createRaw(`{"id":1,"name":"${char}"}`), 40008, 'The body is not valid JSON.',
      encodeURI(char))
  }
  for (const escape of ['\\x41', '\\u', '\\u00', '\\uZZZZ', "\\'", '\\a', '\\']) {
    isError(t, await createRaw(`{"id":1,"name":"${escape}"}`), 40008, 'The body is not valid JSON.', escape)
  }
  t.same(await stored(), [])
})
