import type { IncomingMessage } from 'node:http'
import { brotliCompressSync, deflateSync, gzipSync } from 'node:zlib'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError, noPlant } from '../support/error-response.ts'

const contentType = 'application/json'
const good = '{"id":1,"name":"n"}'

const { app, as, listen, url } = await startApp(t)
const address = await listen()
const alice = await as('alice')

const send = (
  payload: string | Buffer | undefined, headers: Record<string, string> = { 'content-type': contentType }
) => app.inject({
  method: 'POST', url: '/plants', headers: { authorization: alice.authorization, ...headers }, payload
})
const stored = async () => (await sql(url, 'select id::text, name, tag from plants order by plants.id'))

t.afterEach(() => sql(url, 'delete from plants'))

t.test('a body that is not a plant is rejected with the number of its error', async (t) => {
  const notJson = [40008, 'The body is not valid JSON.'] as const
  const forbidden = [40009, 'The body must not have a key "__proto__".'] as const
  const tooComplex = [40017, 'The body must not have more than 100 values.'] as const
  const id = 'an integer from -9223372036854775808 to 9223372036854775807.'
  const name = 'a string of Unicode characters without U+0000.'
  const cases: Array<[body: string, number: number, message: string]> = [
    ['', ...noPlant], ['null', ...noPlant], [' null\n', ...noPlant], ['true', ...noPlant], ['0', ...noPlant],
    ['9007199254740993', ...noPlant], ['""', ...noPlant], ['"{}"', ...noPlant], ['[]', ...noPlant],
    [`[${good}]`, ...noPlant],
    [' ', ...notJson], ['\n', ...notJson], ['\uFEFF', ...notJson], ['{', ...notJson], ['}', ...notJson],
    ['[', ...notJson], ['"', ...notJson], ['{"', ...notJson], ['{"id"', ...notJson], ['{"id":', ...notJson],
    ['{"id":1', ...notJson], ['{"id":1,', ...notJson],
    [good.slice(0, -1), ...notJson], [good.slice(1), ...notJson], [`${good}x`, ...notJson],
    [`${good}}`, ...notJson], [`${good}${good}`, ...notJson], [`${good},`, ...notJson],
    [`${good}\0`, ...notJson], [`x${good}`, ...notJson], [`\uFEFF\uFEFF${good}`, ...notJson],
    ['{"id":1,"name":"n",}', ...notJson], ['{"id":1 "name":"n"}', ...notJson],
    ['{"id" 1,"name":"n"}', ...notJson], ['{id:1,"name":"n"}', ...notJson],
    ["{'id':1,'name':'n'}", ...notJson], ['{"id":1,"name":"n"/*x*/}', ...notJson],
    [`//x\n${good}`, ...notJson],
    ['{"id":1,"name":"n","x":[1,]}', ...notJson], ['{"id":1,"name":"n","x":[}]', ...notJson],
    ['{"id":1,"name":"n","x":tru}', ...notJson], ['id=1&name=n', ...notJson], ['<id>1</id>', ...notJson],
    ['{"id":1.5,"name":"n', ...notJson], ['{"id":1.5,"name":"n\\', ...notJson],
    ['{"__proto__":1,"id":1,"name":"n"}', ...forbidden],
    ['{"id":1,"name":"n","__proto__":{"tag":"t"}}', ...forbidden],
    ['{"id":1,"name":"n","__proto__":null}', ...forbidden],
    ['{"id":1,"name":"n","\\u005f_proto_\\u005F":{}}', ...forbidden],
    ['{"id":1,"name":"n","x":{"y":[{"__proto__" \n : 1}]}}', ...forbidden],
    ['[{"__proto__":1}]', ...forbidden], ['{"__proto__":{"id":1,"name":"n"}}', ...forbidden],
    [`{"id":9007199254740993,"name":"${'n'.repeat(2000)}","__proto__":1}`, ...forbidden],
    ['{}', 40011, `id is missing: expected ${id}`], ['{"name":"n"}', 40011, `id is missing: expected ${id}`],
    ['{"id":1}', 40011, `name is missing: expected ${name}`],
    ['{"id":"1","name":1}', 40012, `id must be ${id}`], ['{"id":1,"name":1}', 40012, `name must be ${name}`],
    ['['.repeat(50_000) + ']'.repeat(50_000), ...tooComplex], ['['.repeat(50_000), ...tooComplex],
    ['{"a":'.repeat(15_000) + '1' + '}'.repeat(15_000), ...tooComplex],
    [`{"id":1,"name":${'['.repeat(50_000)}${']'.repeat(50_000)}}`, ...tooComplex],
    [`{"id":1,"name":"n","x":[${'1,'.repeat(60_000)}1]}`, ...tooComplex],
    [`{"id":1,"name":"n","x":[${'9007199254740993e-1,'.repeat(6000)}1]}`, ...tooComplex],
    [`{"name":"n",${'"id":1,'.repeat(100)}"id":1}`, ...tooComplex],
    [`{"id":1,"name":"n","x":[${'{"__proto__":1},'.repeat(100)}1]}`, ...tooComplex],
    [`{"id":1,"name":"n","x":[${Array(98).fill(1).join()}]}`, ...tooComplex]
  ]
  for (const [body, number, message] of cases) {
    isError(t, await send(body), number, message, body.slice(0, 50))
  }
  t.same(await stored(), [])
})

t.test('the last of several duplicate keys wins', async (t) => {
  await send('{"id":1,"name":"first","tag":"first","id":2,"name":"last","tag":"last"}')
  await send('{"id":"x","name":5,"tag":null,"id":3,"n\\u0061me":"escaped","tag":""}')
  t.same(await stored(), [{ id: '2', name: 'last', tag: 'last' }, { id: '3', name: 'escaped', tag: '' }])
})

t.test('unknown fields are ignored', async (t) => {
  const fields = [
    '"x":null', '"":1', '"Id":7', '"owner":"bob"', '"created_at":"2020-01-01"',
    '"constructor":{"prototype":{"tag":"t"}}', '"prototype":1', '"toString":"x"', '"hasOwnProperty":1',
    '"toJSON":"x"', '"x":{"id":7,"tag":"t"}', '"tags":["t"]', `"x":[${Array(97).fill(1).join()}]`,
    '"x":1e999', '"x":9007199254740993', '"__proto__x":1', '"x":"\\"__proto__\\":1"', '"x":"\\ud800"',
    `"x":${'['.repeat(90)}${']'.repeat(90)}`, `"x":[${'1,'.repeat(90)}1]`, `"x":"${'[{,'.repeat(10_000)}"`
  ]
  for (const [id, field] of fields.entries()) {
    const created = await send(`{"id":${id},${field},"name":"n"}`)
    t.equal(created.body, '{"name":"n"}', field.slice(0, 40))
  }
  t.same(await stored(), fields.map((_, id) => ({ id: String(id), name: 'n', tag: null })))
  t.notOk('tag' in {}, 'Object.prototype did not change')
})

t.test('a body must be JSON in UTF-8 and have matching headers', async (t) => {
  const accepted = [
    'application/json', 'Application/JSON', 'APPLICATION/JSON; CHARSET=UTF-8',
    'application/json;charset=utf-8', 'application/json ; charset="utf-8"', 'application/json; charset=Utf8',
    'application/json; charset=utf-8; x=y', 'application/json; x=y; charset=utf-8', 'application/json;',
    'application/json; x="; y"', '\tapplication/json '
  ]
  for (const [id, type] of accepted.entries()) {
    t.equal((await send(`{"id":${id},"name":"n"}`, { 'content-type': type })).statusCode, 200, type)
  }
  t.equal((await send('{"id":100,"name":"n"}',
    { 'content-type': contentType, 'content-encoding': 'Identity' })).statusCode, 200)
  const before = await stored()

  const rejected = [
    'text/plain', 'text/json', 'application/x-www-form-urlencoded', 'multipart/form-data; boundary=x',
    'application/xml', 'application/octet-stream', 'application/jsonp', 'application/json5',
    'application/json-patch+json', 'application/vnd.api+json', 'application/*', '*/*', 'json', 'application',
    '/', 'application/', '/json', ';', 'application json', 'application/json, text/plain',
    'application/json,application/json', 'undefined', '', 'application/json; charset=latin1',
    'application/json; charset=ISO-8859-1', 'application/json; charset=utf-16',
    'application/json; charset="utf-32"', 'application/json;CHARSET=us-ascii', 'application/json; charset=',
    'application/json; charset=utf-8x', 'application/json; x=y; charset=utf-7'
  ]
  for (const type of rejected) {
    isError(t, await send(good, { 'content-type': type }), 40004,
      'The body must be application/json in UTF-8.', type)
  }
  isError(t, await send(good, {}), 40004, 'The body must be application/json in UTF-8.', 'no content type')
  isError(t, await send(undefined, {}), ...noPlant, 'nothing at all')

  const encodings: Array<[string, Buffer | string]> = [
    ['gzip', gzipSync(good)], ['GZIP', gzipSync(good)], ['deflate', deflateSync(good)],
    ['br', brotliCompressSync(good)], ['gzip, identity', good], ['identity, identity', good], ['x', good],
    ['', good], ['aws-chunked', good]
  ]
  for (const [encoding, body] of encodings) {
    isError(t, await send(body, { 'content-type': contentType, 'content-encoding': encoding }), 40005,
      'The body must not have a content encoding: send it uncompressed.', encoding)
  }
  isError(t, await send(gzipSync(good)), 40007, 'The body is not valid UTF-8.',
    'gzip without Content-Encoding')
  t.same(await stored(), before)
})

t.test('a body of exactly BODY_LIMIT bytes is accepted, and a longer one is rejected', async (t) => {
  const { app, as, url } = await startApp(t, { BODY_LIMIT: '3000' })
  const { authorization } = await as('alice')
  const bodyOf = (bytes: number, id = bytes) =>
    `{"id":${id},"name":"${'é'.repeat((bytes - 24) / 2)}"}`.padEnd(bytes - (bytes - 24) / 2)
  const send = (payload: string) => app.inject({
    method: 'POST', url: '/plants', headers: { authorization, 'content-type': contentType }, payload
  })
  t.equal(Buffer.byteLength(bodyOf(3000)), 3000)
  t.equal((await send(bodyOf(3000))).statusCode, 200)
  isError(t, await send(bodyOf(3002)), 40006, 'The body is larger than this service accepts.')
  isError(t, await send(bodyOf(3000).padEnd(10_000)), 40006, 'The body is larger than this service accepts.')
  t.same((await sql(url, 'select id::text from plants')), [{ id: '3000' }])
})

t.test('the default limit is 128 KiB', async (t) => {
  t.equal((await send(good.padEnd(128 * 1024))).statusCode, 200)
  isError(t, await send(good.padEnd(128 * 1024 + 1)), 40006, 'The body is larger than this service accepts.')
})

t.test('a delete ignores a well-formed body', async (t) => {
  const remove = (id: number, headers: Record<string, string>, payload?: string) =>
    app.inject({
      method: 'DELETE',
      url: `/plants/${id}`,
      headers: { authorization: alice.authorization, ...headers },
      payload
    })
  for (let id = 1; id <= 6; id++) await send(`{"id":${id},"name":"n"}`)

  t.equal((await remove(1, {})).statusCode, 204)
  t.equal((await remove(2, { 'content-type': contentType })).statusCode, 204)
  t.equal((await remove(3, { 'content-type': contentType, 'content-length': '0' })).statusCode, 204)
  t.equal((await remove(4, { 'content-type': contentType }, '{"id":5}')).statusCode, 204)
  t.same(await stored(), [{ id: '5', name: 'n', tag: null }, { id: '6', name: 'n', tag: null }])

  isError(t, await remove(5, { 'content-type': contentType }, '{'), 40008, 'The body is not valid JSON.')
  isError(t, await remove(5, { 'content-type': 'text/plain' }, 'x'), 40004,
    'The body must be application/json in UTF-8.')
  isError(t, await remove(5, { 'content-type': contentType, 'content-encoding': 'gzip' }), 40005,
    'The body must not have a content encoding: send it uncompressed.')
  t.equal((await stored()).length, 2)
})

t.test('a list ignores any body', async (t) => {
  for (const payload of ['{', 'x'.repeat(2_000_000)]) {
    const listed = await app.inject({
      method: 'GET',
      url: '/plants',
      headers: { authorization: alice.authorization, 'content-type': 'text/plain' },
      payload
    })
    t.match({ status: listed.statusCode, body: listed.body }, { status: 200, body: '[]' })
  }
})

t.test('Node ends the stream of a request without a body before the service sees it', async (t) => {
  const requests: Array<[method: string | undefined, isEnded: boolean]> = []
  app.server.prependListener('request',
    ({ method, readableEnded }: IncomingMessage) => { requests.push([method, readableEnded]) })
  await fetch(`${address}/livez`)
  await fetch(`${address}/livez`, { method: 'POST', body: 'a body' })
  t.strictSame(requests, [['GET', true], ['POST', false]])
})

t.test('routes without authentication ignore a body of any size', async (t) => {
  for (const size of [1, 100_000]) {
    const response = await app.inject({
      url: '/livez', headers: { 'content-type': 'text/plain' }, payload: 'x'.repeat(size)
    })
    t.match([response.statusCode, response.json()], [200, { status: 'ok' }], `${size}`)
  }
})
