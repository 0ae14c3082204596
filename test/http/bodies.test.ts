// Tests the bodies of requests: their syntax, their headers, and bodies that arrive in many pieces.
import { once } from 'node:events'
import { createServer, get, type IncomingMessage } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import { gzipSync } from 'node:zlib'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { costlyBodies } from '../support/costly-bodies.ts'
import { sql } from '../support/database.ts'
import { isError, noPlant } from '../support/error-response.ts'
import { exchange } from '../support/raw.ts'

const contentType = 'application/json'
const good = '{"id":1,"name":"n"}'
const wrongType = [40004, 'The body must be application/json in UTF-8.'] as const
const encoded = [40005, 'The body must not have a content encoding: send it uncompressed.'] as const
const tooLarge = [40006, 'The body is larger than this service accepts.'] as const
const notUtf8 = [40007, 'The body is not valid UTF-8.'] as const
const notJson = [40008, 'The body is not valid JSON.'] as const

const { app, as, listen, observers: [metrics], url } = await startApp(t, { METRICS_PORT: '0' })
const address = await listen()
const { authorization, create, delete: remove } = await as('alice')

const send = (payload: string | Buffer | undefined, headers: object = { 'content-type': contentType }) =>
  app.inject({ method: 'POST', url: '/plants', headers: { authorization, ...headers }, payload })
const stored = () => sql(url, 'select id::int, name, tag from plants order by plants.id')

t.afterEach(() => sql(url, 'delete from plants'))

t.test('a body that is not a plant is rejected with the number of its error', async (t) => {
  const forbidden = [40009, 'The body must not have a key "__proto__".'] as const
  const tooComplex = [40017, 'The body must not have more than 100 values.'] as const
  const id = 'an integer from -9223372036854775808 to 9223372036854775807.'
  const text = 'a string of Unicode characters without U+0000.'
  const cases: Array<[body: string | Buffer, number: number, message: string]> = [
    ['', ...noPlant], ['null', ...noPlant], ['0', ...noPlant], ['9007199254740993', ...noPlant],
    ['"{}"', ...noPlant], [`[${good}]`, ...noPlant],
    [' ', ...notJson], ['\uFEFF', ...notJson], ['{"id":1', ...notJson], [`${good}x`, ...notJson],
    [`${good}\0`, ...notJson], [`\uFEFF\uFEFF${good}`, ...notJson], ['{"id":1,"name":"n",}', ...notJson],
    ['{"id":1.5,"name":"n\\', ...notJson], ['{"id":01,"name":"n"}', ...notJson],
    ['{"id":1,"name":"\n"}', ...notJson],
    ['{"__proto__":1,"id":1,"name":"n"}', ...forbidden],
    ['{"id":1,"name":"n","\\u005f_proto_\\u005F":{}}', ...forbidden],
    ['{"id":1,"name":"n","x":{"y":[{"__proto__" \n : 1}]}}', ...forbidden],
    ['{}', 40011, `id is missing: expected ${id}`], ['{"id":1}', 40011, `name is missing: expected ${text}`],
    ['{"id":"1","name":1}', 40012, `id must be ${id}`], ['{"id":1,"name":1}', 40012, `name must be ${text}`],
    ['{"id":1,"name":"n","tag":null}', 40012, `tag must be ${text}`],
    ['{"id":1,"name":"a\\u0000b"}', 40012, `name must be ${text}`],
    ['{"id":1,"name":"n","tag":"\\ud83d"}', 40012, `tag must be ${text}`],
    ['{"id":1e19,"name":"n"}', 40013, `id must be ${id.slice(11)}`],
    [`{"id":1,"name":"n","x":[${Array(98).fill(1).join()}]}`, ...tooComplex],
    [Buffer.from('{"id":1,"name":"é"}', 'latin1'), ...notUtf8],
    [Buffer.from(`${good}\xFF`, 'latin1'), ...notUtf8],
    [gzipSync(good), ...notUtf8],
    [good.padEnd(128 * 1024 + 1), ...tooLarge], [`{"id":1,"name":"${'é'.repeat(64 * 1024)}"}`, ...tooLarge]
  ]
  for (const [body, number, message] of cases) {
    isError(t, await send(body), number, message, String(body).slice(0, 50))
  }
  t.strictSame(await stored(), [])
  t.equal((await send(good.padEnd(128 * 1024))).statusCode, 200, 'a body of exactly BODY_LIMIT bytes')
})

t.test('the most expensive bodies get the same responses as cheap ones', async (t) => {
  for (const [title, [body, ...error]] of Object.entries(costlyBodies)) {
    const response = await create(body)
    if (error.length === 0) t.equal(response.statusCode, 200, title)
    else isError(t, response, error[0], error[1], title)
  }
  const accepted = Object.values(costlyBodies).filter(([, ...error]) => error.length === 0)
    .map(([body]) => JSON.parse(body)).map(({ id, name }) => ({ id, length: [...name].length }))
  t.equal(accepted.length, 10)
  t.strictSame(await sql(url, 'select id::int, char_length(name) as length from plants order by plants.id'),
    accepted.toSorted((a, b) => a.id - b.id))
})

t.test('the last of several duplicate keys wins, and unknown fields are ignored', async (t) => {
  const bodies = [
    '{"id":1,"name":"first","tag":"first","id":0,"name":"last","tag":""}',
    '\uFEFF{"id":"x","name":5,"tag":null,"\\u0069d":1,"n\\u0061me":"last","tag":""}',
    ...[
      '"Id":7', '"owner":"bob"', '"constructor":{"prototype":{"tag":"t"}}', '"hasOwnProperty":1',
      '"__proto__x":1', '"x":"\\"__proto__\\":1"', '"x":1e999', '"x":"\\ud800"', '"toJSON":"x"',
      `"x":[${'1,'.repeat(95)}1]`, `"x":${'['.repeat(90)}${']'.repeat(90)}`,
      `"x":"${'[{,'.repeat(10_000)}"`
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
    t.equal((await send(`{"id":${id},"name":"n"}`, { 'content-type': type })).statusCode, 200, type)
  }
  const identity = { 'content-type': contentType, 'content-encoding': 'Identity' }
  t.equal((await send('{"id":100,"name":"n"}', identity)).statusCode, 200)
  for (const type of [
    'text/plain', 'application/jsonp', 'application/vnd.api+json', '*/*', 'json', '', ';',
    'application/json, text/plain', 'application/json; charset=latin1', 'application/json; charset="utf-32"',
    'application/json;CHARSET=us-ascii', 'application/json; charset=', 'application/json; charset=utf-8x'
  ]) isError(t, await send(good, { 'content-type': type }), ...wrongType, type)
  isError(t, await send(good, {}), ...wrongType, 'no content type')
  isError(t, await send(undefined, {}), ...noPlant, 'nothing at all')
  for (const encoding of ['gzip', 'gzip, identity', 'identity, identity', '', 'aws-chunked']) {
    const headers = { 'content-type': contentType, 'content-encoding': encoding }
    isError(t, await send(good, headers), ...encoded, encoding)
  }
  t.equal((await stored()).length, accepted.length + 1)
})

t.test('a delete checks and ignores a body, and a list does not read it', async (t) => {
  const request = (method: 'DELETE' | 'GET', path: string, headers: object, payload?: string) =>
    app.inject({ method, url: path, headers: { authorization, ...headers }, payload })
  const json = { 'content-type': contentType }
  await create(good)
  isError(t, await request('DELETE', '/plants/1', json, '{'), ...notJson)
  isError(t, await request('DELETE', '/plants/1', { 'content-type': 'text/plain' }, 'x'), ...wrongType)
  isError(t, await request('DELETE', '/plants/1', { ...json, 'content-encoding': 'gzip' }), ...encoded)
  t.equal((await request('DELETE', '/plants/1', json, '{"id":5}')).statusCode, 204)
  await create(good)
  t.equal((await request('DELETE', '/plants/1', { ...json, 'content-length': '0' })).statusCode, 204)
  t.equal((await remove(1)).statusCode, 404)
  const listed = await request('GET', '/plants', { 'content-type': 'text/plain' }, 'x'.repeat(2_000_000))
  t.match({ status: listed.statusCode, body: listed.body }, { status: 200, body: '[]' })
})

const head = (line = 'POST /plants', extra = 'Transfer-Encoding: chunked') =>
  `${line} HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
  `Content-Type: application/json\r\nConnection: close\r\n${extra}\r\n\r\n`
const chunk = (part: string) => `${part.length.toString(16)}\r\n${part}\r\n`
const chunks = (body: string, size: number) => body.match(RegExp(`.{1,${size}}`, 'g'))?.map(chunk).join('')
const plant = (id: number, name = 'n') => JSON.stringify({ id, name })
const end = '0\r\n\r\n'

/** Resolves when the service has closed the connection. */
async function untilClosed (to: string, request: string): Promise<void> {
  const { hostname, port } = new URL(to)
  const socket = connect(Number(port), hostname).on('error', () => {})
  socket.write(request)
  // `once` would reject, because a reset also emits 'error'.
  await new Promise((resolve) => socket.resume().on('close', resolve))
}

t.test('a body may arrive in 100 pieces of one byte, and in any number of larger pieces', async (t) => {
  const small = plant(1, 'n'.repeat(80))
  const large = plant(2, 'n'.repeat(130_000))
  for (const body of [chunks(small, 1), chunks(large, 256)]) {
    t.match(await exchange(address, [head() + body + end]), [{ status: 200 }])
  }
  t.same(await sql(url, 'select id, length(name) from plants order by id'),
    [{ id: '1', length: 80 }, { id: '2', length: 130_000 }])
})

t.test('a body in more pieces is not read further, and creates nothing', async (t) => {
  const pieces: number[] = []
  const count = (request: IncomingMessage) => {
    const index = pieces.push(0) - 1
    const { push } = request
    request.push = (piece) => {
      if (piece !== null) pieces[index] = (pieces[index] as number) + 1
      return push.call(request, piece)
    }
  }
  app.server.prependListener('request', count)
  t.teardown(() => app.server.off('request', count))
  const body = chunks(`${plant(3)}${' '.repeat(5000)}`, 1) + end
  await untilClosed(address, head() + body)
  await untilClosed(address, head('GET /livez') + body)
  await untilClosed(address, head('POST /plants').replace(/Auth.*\r\n/, '') + body)
  t.equal(pieces[0], 100)
  t.ok(Math.max(...pieces) <= 100, `${pieces}`)
  t.same(await sql(url, 'select from plants where id = 3'), [])
  const [later] = await exchange(address, [head() + chunks(plant(4, 'n'.repeat(80)), 1) + end])
  t.equal(later?.status, 200, 'a later connection has the whole limit again, although Node reuses parsers')
})

t.test('the metrics listener has the same limit', async (t) => {
  await untilClosed(metrics?.url as string, head('GET /metrics') + chunks('x'.repeat(5000), 1))
  t.equal((await fetch(metrics?.url as string)).status, 200)
})

t.test('a client in this process may reuse the parser of such a connection', async (t) => {
  const server = createServer((_request, response) => response.end('whole')).listen(0, '127.0.0.1')
  t.teardown(() => server.close())
  await once(server, 'listening')
  const { port } = server.address() as AddressInfo
  await untilClosed(address, head() + chunks(`${plant(4)}${' '.repeat(5000)}`, 1) + end)
  const [response] = await once(get({ port, host: '127.0.0.1', agent: false }), 'response')
  t.equal(await text(response), 'whole')
})
