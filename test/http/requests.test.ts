// Tests that the service conforms to HTTP. docs/api.md lists the surprising cases.
import { once } from 'node:events'
import { METHODS } from 'node:http'
import type { Socket } from 'node:net'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { isError, noPlant } from '../support/error-response.ts'
import { exchange, exchangeInTurn, type RawResponse } from '../support/raw.ts'
import { examplePaths } from '../support/routes.ts'

const unknownPath: [number, string] = [40401, 'There is nothing at this path.']
const wrongMethod = (allow: string): [number, string] =>
  [40501, `This path does not support this method: use ${allow}.`]

const { app, as, log, url, listen } = await startApp(t)
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

const outcomes = (responses: RawResponse[]) =>
  responses.map(({ status, headers: { connection } }) => [status, connection])

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
    ['OPTIONS /plants', 405,
      '{"error":40501,"message":"This path does not support this method: use GET, HEAD, POST."}',
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
    'a fragment after the id': request('DELETE /plants/1#2 HTTP/1.1', ['Connection: close']),
    'an end within a header': request('GET /plants HTTP/1.1').slice(0, -10),
    'two framings': create(chunks, ['Content-Length: 30', chunked]),
    'a coding before chunked': create(chunks + last, ['Transfer-Encoding: gzip, chunked']),
    'a parameter of chunked': create(chunks + last, ['Transfer-Encoding: chunked;x=y']),
    'chunked in HTTP/1.0': create(chunks + last, [chunked, 'Connection: keep-alive']).replace('1.1', '1.0'),
    'an end within the body': create(body.slice(1), ['Content-Length: 19']),
    'an end before the last chunk': create(`13\r\n${body}\r\n`, [chunked])
  }
  for (const [title, text] of Object.entries(requests)) {
    const responses = await exchange(address, [text], { halfClose: true })
    t.equal(responses.length, 1, title)
    isError(t, responses[0], 40001, 'The request is not well-formed HTTP/1.1.', title)
    t.match(responses[0]?.headers, { connection: 'close', 'cache-control': 'no-store' }, title)
    const age = Date.now() - Date.parse(responses[0]?.headers.date as string)
    t.ok(age >= 0 && age < 10_000, title)
  }
  const [old] = await exchange(address,
    [request('GET /%zz HTTP/1.0', [chunked, 'Connection: keep-alive']) + chunks + last])
  t.match(old, { status: 400, headers: { connection: 'close' } }, 'chunked in HTTP/1.0, malformed URL')
  t.strictSame(await stored(), [{ id: 1 }])
})

t.test('a wrong URL, two credentials, two types and an absent body are rejected', async (t) => {
  const cases: Array<[request: string, number: number, message: string]> = [
    ...['GET /%', 'GET /plants%', 'DELETE /plants/%2', 'DELETE /plants/%ff', 'GET /livez%'].map(
      (line): (typeof cases)[0] =>
        [request(`${line} HTTP/1.1`), 40002, 'The URL is malformed: write % as %25.']),
    ...['%', '%C0%80&limit=1', '1?%zz=', '%zz=1'].map((query): (typeof cases)[0] =>
      [request(`GET /plants?${query} HTTP/1.1`),
        40016, 'This name is not a parameter here: use limit or after.']),
    [request('GET /plants?limit=1%zz HTTP/1.1'),
      40016, 'limit must be a decimal integer from 0 to 2147483647, without + or leading zeros, given once.'],
    [request(`DELETE /plants/${'1'.repeat(993)} HTTP/1.1`), 41401, 'The URL is too long.'],
    [request(`GET /${'x'.repeat(15_000)} HTTP/1.1`), 41401, 'The URL is too long.'],
    [request(`GET /${'x'.repeat(999)} HTTP/1.1`), ...unknownPath],
    [request('GET /plants HTTP/1.1', [`Authorization: ${authorization}`]),
      40102, 'The bearer token is not valid.'],
    [create(body, ['Content-Type: text/plain', 'Content-Length: 19']),
      40004, 'The body must be JSON in UTF-8, with `Content-Type: application/json`.'],
    [create('', []), ...noPlant]
  ]
  for (const [text, number, message] of cases) {
    const [response] = await exchange(address, [text], { halfClose: true })
    isError(t, response, number, message, text.slice(0, 30))
  }
  t.strictSame(await stored(), [{ id: 1 }])
})

t.test('HTTP/1.1 needs one Host header: a host with an optional port, or empty', async (t) => {
  const send = (version: string, hosts: string[]) => exchange(address, [Buffer.from([
    `GET /livez HTTP/${version}`, ...hosts.map((host) => `Host: ${host}`), 'Connection: close', '', ''
  ].join('\r\n'), 'latin1')])
  const message = 'An HTTP/1.1 request needs one valid Host header.'
  const accepted = ['x', 'X.a', 'x:', 'x:80', '127.0.0.1:3000', '[::1]:3000', 'a,b', '!$&\'()*+,;=~', '']
  for (const host of accepted) t.equal((await send('1.1', [host]))[0]?.status, 200, host)
  for (const host of [
    'a b', 'a/b', 'u@h', 'a:b', 'a?b', 'a\\b', '%zz', '[::g]', '::1', 'a:80:81', 'a, b', '<x>', 'x\xE9',
    '%20', '[v1.x:y]', ':80', 'x:65536'
  ]) {
    for (const version of ['1.1', '1.0']) isError(t, (await send(version, [host]))[0], 40003, message, host)
  }
  for (const hosts of [[], ['a', 'a'], ['a', ''], ['a,b', 'c']]) {
    isError(t, (await send('1.1', hosts))[0], 40003, message, hosts.join(' and '))
  }
  t.equal((await send('1.0', []))[0]?.status, 200)
})

t.test('a client that expects 100 Continue gets it at once, and then perhaps an error', async (t) => {
  const expecting = create('', ['Content-Length: 19', 'Expect: 100-Continue'])
  const cases: Array<[request: string, number: number]> = [
    [expecting.replace(/Bearer .*/, 'Bearer x'), 40102],
    [expecting.replace('application/json', 'text/plain'), 40004],
    [expecting.replace('Length: 19', 'Length: 2000000'), 40006],
    [expecting.replace('/plants', '/x'), 40401],
    [expecting.replace('POST', 'PUT'), 40501],
    ...['banana', '100-continue, banana', ''].map((expectation): [string, number] =>
      [expecting.replace('100-Continue', expectation), 41701])
  ]
  for (const [text, number] of cases) {
    const responses = (await exchange(address, [text])).filter(({ status }) => status !== 100)
    // The client may omit the body. So the service does not know where the next request begins.
    t.strictSame(outcomes(responses), [[Math.floor(number / 100), 'close']], text)
    t.match(responses[0]?.body, `{"error":${number},`)
  }
  t.strictSame(await stored(), [{ id: 1 }])
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const untilContinue = async () => {
    const [socket] = await accepted
    while (socket.bytesWritten === 0) await new Promise(setImmediate)
  }
  const closing = expecting.replace('Expect', 'Connection: close\r\nExpect')
  const responses = await exchange(address, [closing, untilContinue, body])
  t.strictSame(outcomes(responses), [[100, undefined], [200, 'close']])
  const [old] = await exchange(address, [closing.replace('1.1', '1.0') + body])
  t.equal(old?.status, 400, 'not to HTTP/1.0')
})

t.test('a path rejects other methods and lists its own in Allow, and other paths are unknown', async (t) => {
  const paths: Record<string, string | undefined> = {
    ...examplePaths,
    '/%70lants?limit=x': examplePaths['/plants'],
    'HTTPS://x:1/plants?/x': examplePaths['/plants'],
    '/plants/x': examplePaths['/plants/1'],
    'http://x?plants': examplePaths['/'],
    ...Object.fromEntries([
      '/x', '/Plants', '//plants', '/plants//', '/plants/1/2', '/plants%2F1', '/plants/../livez', '/livez/x',
      '/__proto__', '/*', '*', '/:id', 'ftp://x/plants', '/livez;x', '/docs/../package.json',
      '/docs/%2e%2e%2fpackage.json', '/docs/docs-page.ts', '/docs/a%00b', '/docs/..%5cx'
    ].map((path) => [path, undefined]))
  }
  const requests = Object.entries(paths).flatMap(([path, allow]) => {
    const methods = allow === undefined ? ['GET', 'HEAD', 'POST', 'OPTIONS', 'PROPFIND'] : METHODS
    return methods.filter((method) => method !== 'CONNECT' && !allow?.split(', ').includes(method))
      .map((method) => ({ line: `${method} ${path}`, allow }))
  })
  const heads = [...requests.keys()].filter((index) => requests[index]?.line.startsWith('HEAD'))
  const texts = requests.map(({ line }) => request(`${line} HTTP/1.1`))
  const responses = await exchangeInTurn(address, [...texts, last], heads)
  t.equal(responses.length, requests.length + 1)
  for (const [index, { line, allow }] of requests.entries()) {
    t.equal(responses[index]?.headers.allow, allow, line)
    const error = allow === undefined ? unknownPath : wrongMethod(allow)
    if (!heads.includes(index)) isError(t, responses[index], ...error, line)
  }
  for (const path of ['/plants/?limit=1', 'http://x/livez/', '/plants/1/', '//']) {
    const [response] = await exchangeInTurn(address, [request(`GET ${path} HTTP/1.1`), last])
    isError(t, response, 40401, 'There is nothing at this path: remove the slash at the end.', path)
  }
})

t.test('a method that Node knows but the service does not gets 501', async (t) => {
  for (const method of ['DESCRIBE', 'ANNOUNCE', 'SETUP', 'PLAY', 'PAUSE', 'TEARDOWN', 'GET_PARAMETER',
    'SET_PARAMETER', 'REDIRECT', 'RECORD', 'FLUSH']) {
    for (const protocol of ['HTTP/1.1', 'RTSP/1.0']) {
      const texts = [request(`${method} /plants ${protocol}`)]
      const [response] = await exchange(address, texts, { halfClose: true })
      isError(t, response, 50101, 'This service does not know this method.', method)
    }
  }
  t.same(await exchange(address, [request('CONNECT x:443 HTTP/1.1')]), [], 'CONNECT ends the connection')
})

t.test('an unknown method gets 501, and the connection is closed', async (t) => {
  for (const before of ['', '\r\n']) {
    for (const method of ['FOO', 'get', 'GETT', 'M-FOO']) {
      const response = (await exchange(address, [`${before}${request(`${method} /plants HTTP/1.1`)}`])).at(-1)
      isError(t, response, 50101, 'This service does not know this method.', method)
      t.equal(response?.headers.connection, 'close')
    }
  }
})

t.test('HEAD gets the response of GET without the body', async (t) => {
  await sql(url, "insert into plants select 'bob', id, 'n' from generate_series(1, 1000) as id")
  const { authorization: bob } = await as('bob')
  for (const path of [
    '/', '/plants', '/plants?limit=1', '/plants?limit=x', '/livez', '/readyz', '/openapi.json', '/x', '/%'
  ]) {
    const get = request(`GET ${path} HTTP/1.1`).replace(authorization, bob)
    const responses = await exchangeInTurn(address, [get, get.replace('GET', 'HEAD'), last], [1])
    const [{ date: _, 'x-request-id': __, ...headers } = {}, head] = responses.map(({ headers }) => headers)
    t.match(headers, { 'cache-control': 'no-store', 'content-type': /^application\/json$/ }, path)
    // The list of all plants is long: only the response to GET has a Transfer-Encoding.
    t.match(head, path === '/plants' ? { 'content-type': 'application/json' } : headers, path)
    t.equal(responses[0]?.status, responses[1]?.status)
  }
})

t.test('an HTTP/1.0 client gets no list that could be truncated unnoticed', async (t) => {
  await sql(url, "insert into plants select 'alice', id, 'n' from generate_series(2, 1000) as id")
  const [rejected] = await exchange(address, [request('GET /plants HTTP/1.0')])
  isError(t, rejected, 40018,
    'The response is too long for HTTP/1.0: use HTTP/1.1, or ask for fewer results.')
  const [short] = await exchange(address, [request('GET /plants?limit=100 HTTP/1.0')])
  t.equal(JSON.parse(short?.body as string).length, 100)
  t.notMatch(log.join(''), '"level":"error"')
})

const exposed = 'WWW-Authenticate, Retry-After, RateLimit, RateLimit-Policy, Link, X-Request-Id'
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
  const wanted = 'authorization,baggage,content-type,sentry-trace,tracestate,x-requested-with'
  const preflight = {
    origin: app1, 'access-control-request-method': 'DELETE', 'access-control-request-headers': wanted
  }
  for (const [url, methods] of Object.entries(examplePaths)) {
    const response = await pages.app.inject({ method: 'OPTIONS', url, headers: preflight })
    t.strictSame(corsHeaders(response.headers), {
      'access-control-allow-origin': app1,
      'access-control-allow-methods': methods,
      'access-control-allow-headers': wanted,
      'access-control-max-age': '7200',
      'access-control-expose-headers': exposed,
      vary: 'access-control-request-headers, origin'
    }, url)
    t.match(response, { statusCode: 204, body: '', headers: { 'cache-control': 'no-store' } })
  }
  for (const headers of [
    { origin: app1 }, { 'access-control-request-method': 'POST' }, { ...preflight, origin: other },
    { ...preflight, origin: `${app1}.evil.example` }
  ]) {
    const response = await pages.app.inject({ method: 'OPTIONS', url: '/plants', headers })
    isError(t, response, ...wrongMethod('GET, HEAD, POST'), JSON.stringify(headers))
    t.notHas(response.headers, 'access-control-allow-methods')
  }
  isError(t, await pages.app.inject({ method: 'OPTIONS', url: '/x', headers: preflight }), ...unknownPath)
  const put = await pages.app.inject({ method: 'PUT', url: '/plants', headers: preflight })
  isError(t, put, ...wrongMethod('GET, HEAD, POST'))
})
