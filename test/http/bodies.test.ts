// Tests the bodies of requests: their syntax, their headers, and bodies that arrive in many pieces.
import t from 'tap'
import { startApp } from '../support/app.ts'
import { costlyBodies } from '../support/costly-bodies.ts'
import { sql } from '../support/database.ts'
import { isError, noPlant, notJson } from '../support/error-response.ts'
import { listOf, type StoredPlant } from '../support/plants.ts'
import { exchange } from '../support/raw.ts'

const contentType = 'application/json'
const good = '{"id":1,"name":"n"}'
const wrongType = [40004, 'The body must be JSON in UTF-8, with `Content-Type: application/json`.'] as const
const encoded = [40005, 'The body must not have a content encoding: send it uncompressed.'] as const
const tooLarge = [40006, 'The body is larger than this service accepts: at most 16384 bytes.'] as const

const { app, as, listen, log, url } = await startApp(t)
const address = await listen()
const { authorization, create, delete: remove, list } = await as('alice')

const send = (payload: string | Buffer | undefined, headers: object = { 'content-type': contentType }) =>
  app.inject({ method: 'POST', url: '/plants', headers: { authorization, ...headers }, payload })
const stored = () => sql(url, 'select id::int, name, tag from plants order by plants.id')

t.afterEach(() => sql(url, 'delete from plants'))

t.test('a body that is not a plant is rejected with the number of its error', async (t) => {
  const forbidden = [40009, 'The body must not have a key "__proto__".'] as const
  const id = 'an integer from -9223372036854775808 to 9223372036854775807.'
  const cases: Array<[body: string | Buffer, number: number, message: string]> = [
    ['', ...noPlant], ['null', ...noPlant], ['9007199254740993', ...noPlant], [`[${good}]`, ...noPlant],
    ...['', ' ', `\uFEFF${good}`, '{"id":1.5,"name":"n\\', `${good}\0`, `{"id":${'🌵'.repeat(20)}}`].map(
      (body): (typeof cases)[0] => [`\uFEFF${body}`, ...notJson(body)]),
    ['{"id":1,\n"name":"n",}', 40008, 'The body is not valid JSON: ' +
      'Expected double-quoted property name in JSON at position 20 (line 2 column 12).'],
    ['{"__proto__":1,"id":1,"name":"n"}', ...forbidden],
    ['{"id":1,"name":"n","\\u005f_proto_\\u005F":{}}', ...forbidden],
    ['{"id":1,"name":"n","x":{"y":[{"__proto__" \n : 1}]}}', ...forbidden],
    ['{}', 40011, `id is missing: expected ${id}`],
    ['{"id":1}', 40011, 'name is missing: expected a string.'],
    ['{"id":"1","name":1}', 40012, `id must be ${id}`],
    ['{"id":1,"name":1}', 40012, 'name must be a string.'],
    ['{"id":1,"name":"n","tag":null}', 40012, 'tag must be a string.'],
    ['{"id":1,"name":"a\\u0000b"}', 40012, 'name must be a string without U+0000.'],
    ['{"id":1,"name":"n","tag":"\\ud83d"}', 40012,
      'tag must be a string without lone surrogates (U+D800 to U+DFFF).'],
    ['{"id":9223372036854775808,"name":"n"}', 40013, `id must be ${id.slice(11)}`],
    [Buffer.from('{"id":1,"name":"é"}', 'latin1'), 40007, 'The body is not valid UTF-8.'],
    [good.padEnd(16 * 1024 + 1), ...tooLarge], [`{"id":1,"name":"${'é'.repeat(8 * 1024)}"}`, ...tooLarge]
  ]
  for (const [body, number, message] of cases) {
    isError(t, await send(body), number, message, String(body).slice(0, 50))
  }
  t.strictSame(await stored(), [])
  t.match(log.join(''), '"msg":"The body is not valid JSON."')
  t.notMatch(log.join(''), '🌵', 'the log has no text of the client')
  t.equal((await send(good.padEnd(16 * 1024))).statusCode, 200, 'a body of exactly BODY_LIMIT bytes')
})

t.test('the most expensive bodies get the same responses as cheap ones', async (t) => {
  const accepted: StoredPlant[] = []
  for (const [title, [body, ...error]] of Object.entries(costlyBodies)) {
    const response = await create(body)
    if (error.length === 0) accepted.push(JSON.parse(body))
    else isError(t, response, error[0], error[1], title)
  }
  t.equal((await list()).body, listOf(accepted))
})

t.test('the last of several duplicate keys wins, and unknown fields are ignored', async (t) => {
  const bodies = [
    '{"id":1,"name":"first","tag":"first","id":0,"name":"last","tag":""}',
    '\uFEFF{"id":"x","name":5,"tag":null,"\\u0069d":1,"n\\u0061me":"last","tag":""}',
    ...[
      '"Id":7', '"owner":"bob"', '"constructor":{"prototype":{"tag":"t"}}', '"hasOwnProperty":1',
      '"__proto__x":1', '"x":"\\"__proto__\\":1"', '"x":1e999', '"x":"\\ud800"', '"toJSON":"x"',
      `"x":[${'1,'.repeat(90)}1.5]`, `"x":[${'1,'.repeat(5000)}1]`, `"x":${'['.repeat(90)}${']'.repeat(90)}`,
      `"x":"${'[{,'.repeat(5000)}"`
    ].map((field, index) => `{"id":${index + 2},${field},"name":"last","tag":""}`)
  ]
  for (const body of bodies) t.equal((await send(body)).body, '{"name":"last","tag":""}', body.slice(0, 60))
  t.strictSame(await stored(), bodies.map((_, id) => ({ id, name: 'last', tag: '' })))
  t.notOk('tag' in {}, 'Object.prototype did not change')
})

t.test('a body must be JSON in UTF-8 and have matching headers', async (t) => {
  const accepted = [
    'Application/JSON', 'APPLICATION/JSON; CHARSET=UTF-8', 'application/json ; charset="utf-8"',
    'application/json; charset=Utf8', 'application/json; x=y; charset=utf-8', 'application/json;'
  ]
  for (const [id, type] of accepted.entries()) {
    const headers = { 'content-type': type, 'content-encoding': 'Identity' }
    t.equal((await send(`{"id":${id},"name":"n"}`, headers)).statusCode, 200, type)
  }
  for (const type of [
    'text/plain', 'application/jsonp', 'application/vnd.api+json', '*/*', '', 'application/json, text/plain',
    'application/json; charset=latin1', 'application/json; charset="utf-32"',
    'application/json;CHARSET=us-ascii', 'application/json; charset=', 'application/json; charset=utf-8x'
  ]) isError(t, await send(good, { 'content-type': type }), ...wrongType, type)
  isError(t, await send(good, {}), ...wrongType, 'no content type')
  isError(t, await send(undefined, {}), ...noPlant, 'nothing at all')
  for (const encoding of ['gzip', 'gzip, identity', 'identity, identity', '', 'aws-chunked']) {
    const headers = { 'content-type': contentType, 'content-encoding': encoding }
    isError(t, await send(good, headers), ...encoded, encoding)
  }
  t.equal((await stored()).length, accepted.length)
})

t.test('a delete checks and ignores a body, and a list does not read a body', async (t) => {
  const request = (method: 'DELETE' | 'GET', path: string, headers: object, payload?: string) =>
    app.inject({ method, url: path, headers: { authorization, ...headers }, payload })
  const json = { 'content-type': contentType }
  await create(good)
  isError(t, await request('DELETE', '/plants/1', json, '{'), ...notJson('{'))
  isError(t, await request('DELETE', '/plants/1', { 'content-type': 'text/plain' }, 'x'), ...wrongType)
  isError(t, await request('DELETE', '/plants/1', { ...json, 'content-encoding': 'gzip' }, '{}'), ...encoded)
  t.equal((await request('DELETE', '/plants/1', json, '{"id":5}')).statusCode, 204)
  await create(good)
  t.equal((await remove(1)).statusCode, 204)
  const listed = await request('GET', '/plants', { 'content-type': 'text/plain' }, 'x'.repeat(2_000_000))
  t.strictSame([listed.statusCode, listed.body], [200, '[]'])
})

t.test('a request without a body has no type to check, however the request shows that', async (t) => {
  const last = '0\r\n\r\n'
  const request = (line: string, headers: string[], rest = '') =>
    [`${line} HTTP/1.1`, 'Host: x', `Authorization: ${authorization}`, ...headers, '', rest].join('\r\n')
  const types = [
    'application/json', 'application/json; charset=latin1', 'application/x-www-form-urlencoded',
    'text/plain;charset=UTF-8', 'no type', ''
  ].map((type) => `Content-Type: ${type}`)
  const lengths = ['Content-Length: 0', 'Content-Length: 00', '']
  const empty = ['', ...types].flatMap((type) =>
    lengths.map((length) => [[type, length, 'Content-Encoding: gzip'].filter(Boolean)] as const))
  // Only the end of a chunked body shows that it is empty. Its charset and its encoding count before.
  const chunked = ['', 'Content-Type: text/plain', 'Content-Type: application/json'].map((type) =>
    [[type, 'Transfer-Encoding: chunked'].filter(Boolean), last] as const)
  for (const [headers, rest] of [...empty, ...chunked]) {
    await create(good)
    const [deleted, posted] = await Promise.all(['DELETE /plants/1', 'POST /plants'].map((line) =>
      exchange(address, [request(line, [...headers, 'Connection: close'], rest)])))
    const responses = [deleted?.[0], posted?.[0]]
    t.match(responses, [{ status: 204 }, { status: 400 }], headers.join())
    isError(t, responses[1], ...noPlant, headers.join())
  }
  for (const type of ['Content-Type: text/plain', 'X: y']) {
    const head = request('DELETE /plants/1', [type, 'Transfer-Encoding: chunked', 'Connection: close'])
    for (const parts of [[chunk(good) + last], [chunk(good), last]]) {
      isError(t, (await exchange(address, [head, ...parts]))[0], ...wrongType, type)
    }
  }
})

// Names of transfer codings are case-insensitive (RFC 9112, section 7).
const head = (line = 'POST /plants') =>
  `${line} HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\nConnection: close\r\n` +
  'Content-Type: application/json\r\nTransfer-Encoding: Chunked\r\n\r\n'
const chunk = (part: string) => `${part.length.toString(16)}\r\n${part}\r\n`
const chunks = (body: string, size: number) => `${body.replace(RegExp(`.{1,${size}}`, 'g'), chunk)}0\r\n\r\n`
const plant = (id: number, name = 'n') => JSON.stringify({ id, name })

t.test('a body may arrive in any number of pieces', async (t) => {
  for (const body of [chunks(plant(1, 'n'.repeat(5000)), 1), chunks(plant(2, 'n'.repeat(16_000)), 256)]) {
    t.match(await exchange(address, [head() + body]), [{ status: 200 }])
  }
  t.same(await sql(url, 'select id, length(name) from plants order by id'),
    [{ id: '1', length: 5000 }, { id: '2', length: 16_000 }])
})
