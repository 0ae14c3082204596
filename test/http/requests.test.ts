// Tests that the service conforms to HTTP. docs/api.md lists the surprising cases.
import { once } from 'node:events'
import { METHODS, type ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError, noPlant } from '../support/error-response.ts'
import { exchange, type RawResponse } from '../support/raw.ts'
import { examplePaths } from '../support/routes.ts'

type ErrorCase = readonly [number: number, message: string]

const malformed: ErrorCase = [40001, 'The request is not well-formed HTTP/1.1.']
const badUrl: ErrorCase = [40002, 'The URL is malformed: write % as %25.']
const badHost: ErrorCase = [40003, 'An HTTP/1.1 request needs one valid Host header.']
const wrongType: ErrorCase = [40004, 'The body must be application/json in UTF-8.']
const tooLarge: ErrorCase = [40006, 'The body is larger than this service accepts.']
const unknownPath: ErrorCase = [40401, 'There is nothing at this path.']
const wrongMethod: ErrorCase = [40501, 'This path does not support this method.']
const tooLong: ErrorCase = [41401, 'The URL is too long.']
const longHeaders: ErrorCase = [43101, 'The headers are too large.']
const unknownMethod: ErrorCase = [50101, 'This service does not know this method.']

const { app, as, url, listen } = await startApp(t)
const address = await listen()
const { authorization } = await as('alice')

const request = (line: string, headers: string[] = [], body = '') =>
  [line, 'Host: x', `Authorization: ${authorization}`, ...headers, '', body].join('\r\n')
const last = request('GET /livez HTTP/1.1', ['Connection: close'])
const body = '{"id":2,"name":"n"}'
const chunks = `13\r\n${body}\r\n0\r\n\r\n`
const create = (body: string, headers: string[]) =>
  request('POST /plants HTTP/1.1', ['Content-Type: application/json', ...headers], body)
const stored = () => sql(url, 'select id::int from plants order by plants.id')

/** Sends the requests in pipelined groups of 15. `heads` has the indexes of the HEAD requests. */
async function exchangeAll (requests: string[], heads: number[] = []): Promise<RawResponse[]> {
  const responses: RawResponse[] = []
  for (let start = 0; start < requests.length; start += 15) {
    const group = requests.slice(start, start + 15)
    const headsOfGroup = heads.map((index) => index - start).filter((index) => index < group.length)
    const received = await exchange(address, [...group, last], { heads: headsOfGroup })
    t.equal(received.length, group.length + 1)
    responses.push(...received.slice(0, -1))
  }
  return responses
}

await sql(url, "insert into plants values ('alice', 1, 'n')")
t.afterEach(() => sql(url, 'delete from plants where id > 1'))

const [app1, app2, other] = ['https://app.example.com', 'http://localhost:5173', 'https://other.example']
const pages = await startApp(t, { CORS_ORIGIN: `${app1}, ${app2}`, USER_RATE: '1/m', DOCS: 'off' })

t.test('with default settings a response has exactly these headers and this body', async (t) => {
  await sql(url, "insert into plants values ('alice', 2, 'm')")
  // Without CORS_ORIGIN, the headers of a web page make no difference.
  const page = ['Connection: close', 'Origin: https://app.example.com', 'Access-Control-Request-Method: POST']
  const cases: Array<[line: string, status: number, body: string, headers?: object, more?: string[]]> = [
    ['GET /livez', 200, '{"status":"ok"}'],
    ['GET /readyz', 200, '{"status":"ok"}'],
    ['GET /', 200, '{"docs":"./docs","openapi":"./openapi.json"}', { vary: 'accept' }],
    ['GET /', 302, '', { vary: 'accept', location: './docs', 'content-length': '0' }, ['Accept: text/html']],
    ['GET /plants', 200, '[{"name":"n"},{"name":"m"}]'],
    ['DELETE /plants/2', 204, ''],
    ['DELETE /plants/2', 404, '{"error":40402,"message":"You have no plant with this id."}'],
    ['OPTIONS /plants', 405, '{"error":40501,"message":"This path does not support this method."}',
      { allow: 'GET, HEAD, POST' }],
    ['hello', 400, '{"error":40001,"message":"The request is not well-formed HTTP/1.1."}']
  ]
  for (const [line, status, body, headers, more = []] of cases) {
    const [response] = await exchange(address, [request(`${line} HTTP/1.1`, [...page, ...more])])
    const { date: _, 'x-request-id': __, ...received } = response?.headers ?? {}
    const content = { 'content-type': 'application/json', 'content-length': String(body.length) }
    t.strictSame([response?.status, response?.body, received], [status, body,
      { 'cache-control': 'no-store', connection: 'close', ...body !== '' && content, ...headers }], line)
  }
})

t.test('a message that is not HTTP/1.1 is rejected, and its connection is closed', async (t) => {
  const chunked = 'Transfer-Encoding: chunked'
  const requests: Record<string, string> = {
    'no request line': 'hello\r\n\r\n',
    'HTTP/0.9': 'GET /plants\r\n\r\n',
    'HTTP/2.0': request('GET /plants HTTP/2.0'),
    'another protocol': request('DESCRIBE /plants RTSP/1.0'),
    'a space in the path': request('GET /plants /1 HTTP/1.1'),
    'a path that is not ASCII': request('DELETE /plants/٥ HTTP/1.1'),
    'a fragment after the id': request('DELETE /plants/1#2 HTTP/1.1', ['Connection: close']),
    'a space before a colon': request('GET /plants HTTP/1.1', ['X : y']),
    'a folded header': request('GET /plants HTTP/1.1', ['X: a', ' b']),
    'an end within a header': request('GET /plants HTTP/1.1').slice(0, -10),
    'two framings': create(chunks, ['Content-Length: 30', chunked]),
    'two lengths': create(body, ['Content-Length: 19', 'Content-Length: 19']),
    'a signed length': create(body, ['Content-Length: +19']),
    'a coding before chunked': create(chunks + last, ['Transfer-Encoding: gzip, chunked']),
    'a coding after chunked': create(body, ['Transfer-Encoding: chunked, gzip']),
    'a parameter of chunked': create(chunks + last, ['Transfer-Encoding: chunked;x=y']),
    'two codings': create(chunks + last, ['Transfer-Encoding: gzip', chunked]),
    'chunked in HTTP/1.0': create(chunks + last, [chunked, 'Connection: keep-alive']).replace('1.1', '1.0'),
    'a chunk longer than its size': create(`12\r\n${body}\r\n0\r\n\r\n`, [chunked]),
    'an end within the body': create(body.slice(1), ['Content-Length: 19']),
    'an end before the last chunk': create(`13\r\n${body}\r\n`, [chunked])
  }
  for (const [title, text] of Object.entries(requests)) {
    const responses = await exchange(address, [text], { halfClose: true })
    t.equal(responses.length, 1, title)
    isError(t, responses[0], ...malformed, title)
    t.match(responses[0]?.headers, { connection: 'close', 'cache-control': 'no-store' }, title)
    const age = Date.now() - Date.parse(responses[0]?.headers.date as string)
    t.ok(age >= 0 && age < 10_000, title)
  }
  const [old] = await exchange(address,
    [request('GET /%zz HTTP/1.0', [chunked, 'Connection: keep-alive']) + chunks + last])
  t.match(old, { status: 400, headers: { connection: 'close' } }, 'chunked in HTTP/1.0, malformed URL')
  t.strictSame(await stored(), [{ id: 1 }])
})

t.test('request lines, headers, paths and chunk extensions have a bounded size', async (t) => {
  for (const [text, error] of [
    [request('GET /plants HTTP/1.1', [`X: ${'x'.repeat(20_000)}`]), longHeaders],
    [request('GET /plants HTTP/1.1', Array(3000).fill('X: y')), longHeaders],
    [`GET /${'x'.repeat(10_000_000)}`, longHeaders],
    [create(`1;${'x'.repeat(20_000)}\r\n{\r\n0\r\n\r\n`, ['Transfer-Encoding: chunked']), tooLarge],
    [request(`DELETE /plants/${'1'.repeat(1001)} HTTP/1.1`) + last, tooLong],
    [request(`GET /${'x'.repeat(15_000)} HTTP/1.1`) + last, unknownPath]
  ] as Array<[text: string, error: ErrorCase]>) {
    isError(t, (await exchange(address, [text]))[0], ...error, text.slice(0, 30))
  }
})

t.test('malformed percent escapes are rejected in the path and in the query', async (t) => {
  const urls = [
    '/%', '/plants%', '/plants/%2', '/plants/%ff', '/livez%', '/plants?%', '/plants?limit=%zz',
    '/plants?x=%C0%80&limit=1', '/plants?x=1?%zz'
  ]
  const responses = await exchangeAll(urls.map((url) =>
    request(`${url.startsWith('/plants/') ? 'DELETE' : 'GET'} ${url} HTTP/1.1`)))
  for (const [index, url] of urls.entries()) isError(t, responses[index], ...badUrl, url)
})

t.test('HTTP/1.1 needs one Host header: a host with an optional port, or empty', async (t) => {
  const send = (version: string, hosts: string[]) => {
    const lines = [`GET /livez HTTP/${version}`, ...hosts.map((host) => `Host: ${host}`), 'Connection: close']
    return exchange(address, [Buffer.from(`${lines.join('\r\n')}\r\n\r\n`, 'latin1')])
  }
  const accepted = ['x', 'X.a', 'x:', 'x:80', '127.0.0.1:3000', '[::1]:3000', 'a,b', '!$&\'()*+,;=~', '']
  for (const host of accepted) t.equal((await send('1.1', [host]))[0]?.status, 200, host)
  for (const host of [
    'a b', 'a/b', 'u@h', 'a:b', 'a?b', 'a\\b', '%zz', '[::g]', '::1', 'a:80:81', 'a, b', '<x>', 'x\xE9',
    '%20', '[v1.x:y]', ':80', 'x:65536'
  ]) {
    for (const version of ['1.1', '1.0']) isError(t, (await send(version, [host]))[0], ...badHost, host)
  }
  for (const hosts of [[], ['a', 'a'], ['a', ''], ['a,b', 'c']]) {
    isError(t, (await send('1.1', hosts))[0], ...badHost, hosts.join(' and '))
  }
  t.equal((await send('1.0', []))[0]?.status, 200)
})

t.test('two contradicting headers are rejected', async (t) => {
  const bob = (await as('bob')).authorization
  const length = 'Content-Length: 19'
  const responses = await exchangeAll([
    request('GET /plants HTTP/1.1', [`Authorization: ${bob}`]),
    create(body, ['Content-Type: text/plain', length]),
    create(body, ['Content-Encoding: gzip', 'Content-Encoding: identity', length])
  ])
  isError(t, responses[0], 40102, 'The bearer token is not valid.')
  isError(t, responses[1], ...wrongType)
  isError(t, responses[2], 40005, 'The body must not have a content encoding: send it uncompressed.')
  t.strictSame(await stored(), [{ id: 1 }])
})

t.test('a body may come in chunks, with trailers and extensions, and must not be absent', async (t) => {
  const responses = await exchange(address, [
    create('1\r\n{\r\n1;x=y\r\n"\r\n0010\r\nid":11,"name":"n\r\n2\r\n"}\r\n0\r\nX-Trailer: y\r\n\r\n',
      ['Transfer-Encoding: Chunked']),
    create('4\r\n{"id\r\n8\r\n":12,"na\r\n', ['Transfer-Encoding: chunked']),
    Buffer.from('B\r\nme":"\xC3', 'latin1'), Buffer.from('\xA9"}  \r\n0\r\n\r\n', 'latin1'),
    create('', []), last
  ])
  t.strictSame(responses.map(({ status }) => status), [200, 200, 400, 200])
  isError(t, responses[2], ...noPlant)
  t.strictSame(await stored(), [{ id: 1 }, { id: 11 }, { id: 12 }])
})

t.test('a client that expects 100 Continue gets an error of its headers at once', async (t) => {
  const expecting = create('', ['Content-Length: 19', 'Expect: 100-continue'])
  const cases: Array<[request: string, number: number]> = [
    [expecting.replace(/Authorization.*\r\n/, ''), 40101],
    [expecting.replace(/Bearer .*/, 'Bearer x'), 40102],
    [expecting.replace('application/json', 'text/plain'), 40004],
    [expecting.replace('Expect', 'Content-Encoding: gzip\r\nExpect'), 40005],
    [expecting.replace('Length: 19', 'Length: 2000000'), 40006],
    [expecting.replace('/plants', '/x'), 40401],
    [expecting.replace('POST', 'PUT'), 40501],
    ...['banana', '100-continue, banana', ''].map((expectation): [string, number] =>
      [expecting.replace('100-continue', expectation), 41701])
  ]
  for (const [text, number] of cases) {
    // After the rejection a client may omit the body. So the service does not know where the next request
    // begins, and closes the connection.
    for (const rest of ['', body + last]) {
      const responses = await exchange(address, [text + rest])
      t.strictSame(responses.map(({ status, headers: { connection }, body }) =>
        [status, connection, JSON.parse(body).error]),
      [[Math.floor(number / 100), 'close', number]], text)
    }
  }
  t.strictSame(await stored(), [{ id: 1 }])
})

t.test('a rejected request gets no 100 Continue while its error response waits for its turn', async (t) => {
  // More connections than error responses in a tick. The service reads few first requests in a tick.
  const connections = 60
  const warm = Promise.withResolvers<void>()
  let responded = 0
  const count = (_request: unknown, response: ServerResponse) =>
    response.once('finish', () => { if (++responded === connections) warm.resolve() })
  app.server.on('request', count)
  t.teardown(() => app.server.off('request', count))
  const expecting = request('POST /plants HTTP/1.1',
    ['Content-Type: text/plain', 'Content-Length: 19', 'Expect: 100-continue'])
  const responses = await Promise.all(Array.from({ length: connections }, () =>
    exchange(address, [request('GET /livez HTTP/1.1'), () => warm.promise, expecting])))
  const expected = [[200, 'keep-alive'], [400, 'close']]
  for (const received of responses) {
    t.strictSame(received.map(({ status, headers: { connection } }) => [status, connection]), expected)
  }
})

t.test('the service sends 100 Continue when it is about to read the body', async (t) => {
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const untilContinue = async () => {
    const [socket] = await accepted
    while (socket.bytesWritten === 0) await new Promise(setImmediate)
  }
  const expecting = create('', ['Content-Length: 19', 'Expect: 100-Continue'])
  const responses = await exchange(address, [expecting, untilContinue, body, last])
  t.strictSame(responses.map(({ status, headers: { connection } }) => [status, connection]),
    [[100, undefined], [200, 'keep-alive'], [200, 'close']])
  const [old] = await exchange(address, [expecting.replace('1.1', '1.0') + body])
  t.equal(old?.status, 400, 'not to HTTP/1.0')
})

t.test('a path rejects other methods and lists its own in Allow, and other paths are unknown', async (t) => {
  const { '/plants': plants = '', '/plants/1': plant = '', '/': root = '' } = examplePaths
  const paths: Record<string, string | undefined> = {
    ...examplePaths,
    '/%70lants?limit=x': plants,
    'HTTPS://x:1/plants?/x': plants,
    '/plants/x': plant,
    'http://x?plants': root,
    ...Object.fromEntries([
      '/x', '/Plants', '//plants', '/plants//', '/plants/1/2', '/plants%2F1', '/plants/../livez', '/livez/x',
      '/__proto__', '/*', '*', '/:id', 'ftp://x/plants', '/livez;x', '/docs/nothing', '/docs/../package.json',
      '/docs/%2e%2e%2fpackage.json', '/docs/docs-page.ts', '/docs/a%00b', '/docs/..%5cx'
    ].map((path) => [path, undefined]))
  }
  const requests = Object.entries(paths).flatMap(([path, allow]) => {
    const methods = allow === undefined ? ['GET', 'HEAD', 'POST', 'OPTIONS', 'PROPFIND'] : METHODS
    return methods.filter((method) => method !== 'CONNECT' && !allow?.split(', ').includes(method))
      .map((method) => ({ method, path, allow }))
  })
  const heads = [...requests.keys()].filter((index) => requests[index]?.method === 'HEAD')
  const responses =
    await exchangeAll(requests.map(({ method, path }) => request(`${method} ${path} HTTP/1.1`)), heads)
  for (const [index, { method, path, allow }] of requests.entries()) {
    const error = allow === undefined ? unknownPath : wrongMethod
    t.equal(responses[index]?.headers.allow, allow, `${method} ${path}`)
    if (method !== 'HEAD') isError(t, responses[index], ...error, `${method} ${path}`)
  }
  const connect = await exchange(address, [request('CONNECT x:443 HTTP/1.1')])
  isError(t, connect[0], ...wrongMethod)
  t.match(connect[0]?.headers, { allow: 'GET, HEAD', connection: 'close' })
  for (const [path, known] of [
    ['/plants/?limit=1', '/plants'], ['http://x/livez/', '/livez'], ['/plants/1/', '/plants/:id'], ['//', '/']
  ] as const) {
    const [response] = await exchangeAll([request(`GET ${path} HTTP/1.1`)])
    isError(t, response, 40401, `There is nothing at this path: use ${known}.`, path)
  }
})

t.test('an unknown method gets 501, and the connection is closed', async (t) => {
  for (const before of ['', request('GET /livez HTTP/1.1'), '\r\n']) {
    for (const method of ['FOO', 'get', 'GETT', 'M-FOO']) {
      const responses =
        await exchange(address, [before + request(`${method} /plants HTTP/1.1`)], { halfClose: true })
      isError(t, responses.at(-1), ...unknownMethod, method)
      t.equal(responses.at(-1)?.headers.connection, 'close')
    }
  }
})

t.test('HEAD gets the response of GET without the body', async (t) => {
  await sql(url, "insert into plants select 'bob', id, 'n' from generate_series(1, 1000) as id")
  const bob = (await as('bob')).authorization
  const paths = ['/', '/plants', '/plants?limit=x', '/livez', '/readyz', '/openapi.json', '/x', '/%']
  const own = paths.map((path): [path: string, user: string] => [path, authorization])
  for (const [path, user] of [...own, ['/plants', bob] as const]) {
    const get = request(`GET ${path} HTTP/1.1`).replace(authorization, user)
    const responses = await exchange(address, [get, get.replace('GET', 'HEAD'), last], { heads: [1] })
    const [{ date: _, 'x-request-id': __, ...headers } = {}, head] = responses.map(({ headers }) => headers)
    t.match(headers, { 'cache-control': 'no-store', 'content-type': /^application\/json$/ }, path)
    t.match(head, user === bob ? { 'content-type': headers['content-type'] } : headers, path)
    t.equal(responses[0]?.status, responses[1]?.status)
  }
})

const exposed = 'WWW-Authenticate, Retry-After, RateLimit, Link, X-Request-Id'
const corsHeaders = (headers: Record<string, unknown>) =>
  Object.fromEntries(Object.entries(headers).filter(([name]) => /^(access-control-|vary$)/.test(name)))

t.test('pages of listed origins may read every response, others none', async (t) => {
  const { authorization } = await pages.as('alice')
  for (const [url, statuses] of [['/plants', [200, 429, 429]], ['/x', [404, 404, 404]]] as const) {
    for (const [index, origin] of [app1, app2, other].entries()) {
      const headers = { authorization, origin }
      const response = await pages.app.inject({ url, headers })
      t.equal(response.statusCode, statuses[index])
      const allowed = { 'access-control-allow-origin': origin, 'access-control-expose-headers': exposed }
      t.strictSame(corsHeaders(response.headers), { vary: 'origin', ...origin !== other && allowed }, origin)
    }
  }
  // This app serves no page at /docs.
  const root = await pages.app.inject({ url: '/', headers: { accept: 'text/html' } })
  t.match(root, { body: '{"openapi":"./openapi.json"}', headers: { vary: 'accept, origin' } })
  t.notHas(root.headers, 'access-control-allow-origin')
})

t.test('a preflight request of a listed origin gets the methods of its path', async (t) => {
  const preflight = { origin: app1, 'access-control-request-method': 'DELETE' }
  for (const [url, methods] of Object.entries(examplePaths)) {
    const response = await pages.app.inject({ method: 'OPTIONS', url, headers: preflight })
    t.strictSame(corsHeaders(response.headers), {
      'access-control-allow-origin': app1,
      'access-control-allow-methods': methods,
      'access-control-allow-headers': 'authorization, content-type, traceparent',
      'access-control-max-age': '7200',
      'access-control-expose-headers': exposed,
      vary: 'origin'
    }, url)
    t.match(response, { statusCode: 204, body: '', headers: { 'cache-control': 'no-store' } })
  }
  for (const headers of [
    { origin: app1 }, { 'access-control-request-method': 'POST' }, { ...preflight, origin: other },
    { ...preflight, origin: `${app1}.evil.example` }
  ]) {
    const response = await pages.app.inject({ method: 'OPTIONS', url: '/plants', headers })
    isError(t, response, ...wrongMethod, JSON.stringify(headers))
    t.equal(response.headers.allow, 'GET, HEAD, POST')
    t.notHas(response.headers, 'access-control-allow-methods')
  }
  isError(t, await pages.app.inject({ method: 'OPTIONS', url: '/x', headers: preflight }), ...unknownPath)
  isError(t, await pages.app.inject({ method: 'PUT', url: '/plants', headers: preflight }), ...wrongMethod)
})
