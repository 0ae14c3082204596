// Tests the bodies of requests: their syntax, their headers, and bodies that arrive in many pieces.
// Also tests the types of values in bodies, paths and queries.
import { Type } from '@sinclair/typebox'
import t from 'tap'
import { defineErrors, errors } from '../../src/errors.ts'
import { parseJson } from '../../src/http/json.ts'
import { compileValidator, defineType, Int64 } from '../../src/http/validation.ts'
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

const [smallest, largest] = [-(2n ** 63n), 2n ** 63n - 1n]
const int64 = `from ${smallest} to ${largest}`
const plain = 'without + or leading zeros'
const wrongId = `The id in the path must be a decimal integer ${int64}, ${plain}.`
const zeros = '0'.repeat(5000)

t.test('every JSON notation of a 64-bit integer has its exact value', async (t) => {
  for (const [value, sources] of [
    [0, ['0.0', '0e0', '0E+5', '0e999999999999999999999', '0.0e-999999999', `0.${zeros}`]],
    [1, ['1.0', '10e-1', '1e+0', '0.01E+2', `1.${zeros}`, `1${zeros}e-5000`, `0.${zeros}1e5001`, '1e00']],
    [2 ** 53 - 1, ['9007199254740991', '9007199254740991.0']],
    [2n ** 53n, ['9007199254740992', '9.007199254740992e15']],
    [2n ** 53n + 1n, ['9007199254740993', '9007199254740993000e-3', '9.007199254740993E15']],
    [-(2n ** 53n) - 1n, ['-9007199254740993', '-9.007199254740993e+15']],
    [largest, [`${largest}`, `${largest}.0`, `${largest}000e-3`, '0.9223372036854775807e19']],
    [smallest, [`${smallest}`, `${smallest}.00`, '-9.223372036854775808E+18']],
    // A double, or NaN for a fraction that JSON.parse rounds to an integer: both are no 64-bit integers.
    [2 ** 63, ['9223372036854775808', '9223372036854775808.0', '922337203685477580.8e1']],
    [1e19, ['1e19', '10000000000000000000']],
    [Infinity, ['1e309', '1e999999999999999999999']],
    [0.5, ['0.5', '5e-1']],
    [NaN, ['9007199254740993.5', '1.00000000000000000001', '123456789012345.000000000000001', `1.${zeros}1`,
      `${'9'.repeat(309)}.5`, `-1${zeros}1e-1`]]
  ] as const) {
    for (const source of sources) {
      t.strictSame(parseJson(`{"x":[5,"\\\\",{"id":${source}}],"y":7}`),
        { x: [5, '\\', { id: value }], y: 7 }, source.slice(0, 40))
    }
  }
})

t.test('the path of a delete needs a decimal 64-bit integer', async (t) => {
  await create('{"id":-15,"name":"n"}')
  await create('{"id":5,"name":"n"}')
  for (const id of [
    '', '+5', '--5', '-', '%205', '5%20', '5%0A', '5%00', '-0', '00', '05', '5.0', '0x5', '%D9%A5', '5%2F',
    '5%23', '*', '5%27%20or%201=1--', `${largest + 1n}`, `${smallest - 1n}`, '9'.repeat(992), '%2535'
  ]) isError(t, await remove(id), 40015, wrongId, id)
  for (const id of [smallest, largest]) {
    isError(t, await remove(id), 40402, 'You have no plant with this id.', `${id}`)
  }
  t.equal((await remove('%2D%315')).statusCode, 204, 'a percent-escaped digit counts as the digit')
  t.strictSame((await list()).json(), [{ name: 'n' }])
})

t.test('a query has known parameters only, and limit once as a decimal int32', async (t) => {
  await create(good)
  for (const query of ['?', '?limit=1', '?limit=2147483647', '?l%69mit=%32', '?&&&']) {
    t.strictSame((await list(query)).json(), [{ name: 'n' }], query)
  }
  const limit = `limit must be a decimal integer from 0 to 2147483647, ${plain}, given once.`
  for (const query of [
    '', '=', '=1.0', '=1e1', '=-1', '=-0', '=%2B1', '=%201', '=1%20', '=01', '=0x1', '=2147483648', '=%D9%A5',
    '=1=1', '=1&limit=1', '=1&l%69mit=1'
  ]) isError(t, await list(`?limit${query}`), 40016, limit, query)
  for (const [name, query] of [
    ['offset', 'limit=1&offset=2'], ['Limit', 'Limit=1'], ['__proto__', '__proto__=1'],
    ['This name', `plant_${'x'.repeat(43)}`]
  ]) {
    isError(t, await list(`?${query}`), 40016, `${name} is not a parameter here: use limit or after.`)
  }
  isError(t, await remove('5?force=true'), 40016, 'force is not a parameter here: use none.')
  const root = await app.inject('/?limit=10&after=MQ')
  isError(t, root, 40016, 'limit is not a parameter here: use none.', 'the URL of a page, resolved wrongly')
})

t.test('the message names a field at any depth, and headers cannot have a schema', async (t) => {
  const schema = Type.Object({
    glazed: Type.Boolean(),
    cracks: Type.Array(Type.Object({ found: Int64({ description: '' }) }))
  })
  const validate = compileValidator({ schema, httpPart: 'body' })
  for (const [body, number, message] of [
    ['{"cracks":[]}', 40011, 'glazed is missing.'],
    ['{"glazed":"x","cracks":[]}', 40012, 'glazed is not valid: Expected boolean.'],
    [`{"glazed":true,"cracks":[{"found":5},{"found":${smallest - 1n}}]}`, 40013,
      `cracks.1.found must be ${int64}.`]
  ] as const) t.match(validate(parseJson(body)), { error: { number, message } }, body)
  t.throws(() => compileValidator({ schema, httpPart: 'headers' }),
    { message: /Validation supports no schema of headers/ })
})

t.test('two errors cannot have the same name or number, and two types the same name', async (t) => {
  t.throws(() => defineType('Int64', '', {}, () => true), { message: 'Int64: the name is taken' })
  for (const [name, number] of [['POT_LOST', errors.INTERNAL.number], ['INTERNAL', 40998]] as const) {
    t.throws(() => defineErrors({ [name]: [number, 'The pot is broken.'] }),
      { message: `${name}: the name or ${number} is taken` })
  }
})
