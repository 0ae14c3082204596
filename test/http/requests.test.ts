import { METHODS } from 'node:http'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { exchange, type RawResponse } from '../support/raw.ts'
import { isError, noPlant } from '../support/error-response.ts'
import { examplePaths } from '../support/routes.ts'

const malformed = [40001, 'The request is not well-formed HTTP/1.1.'] as const
const badUrl = [40002, 'The URL has a malformed percent escape: write % as %25.'] as const
const host = [40003, 'An HTTP/1.1 request needs one valid Host header.'] as const
const unknownPath = [40401, 'There is nothing at this path.'] as const
const wrongMethod = [40501, 'This path does not support this method.'] as const
const longHeaders = [43101, 'The headers are too large.'] as const

const { as, url, listen, log } = await startApp(t)
const address = await listen()
const { authorization } = await as('alice')

const request = (line: string, headers: string[] = [], body = '') =>
  [line, 'Host: x', `Authorization: ${authorization}`, ...headers, '', body].join('\r\n')
const last = request('GET /livez HTTP/1.1', ['Connection: close'])
const create = (body: string, headers: string[]) =>
  request('POST /plants HTTP/1.1', ['Content-Type: application/json', ...headers], body)
/** Sends the requests in pipelined groups of 15. `heads` has the indexes of the HEAD requests. */
async function exchangeAll (requests: string[], heads: number[] = []): Promise<RawResponse[]> {
  const responses: RawResponse[] = []
  for (let start = 0; start < requests.length; start += 15) {
    const group = requests.slice(start, start + 15)
    const received = await exchange(address, [...group, last], { heads: heads.map((index) => index - start) })
    t.equal(received.length, group.length + 1)
    responses.push(...received.slice(0, -1))
  }
  return responses
}
const stored = async () => (await sql(url, 'select id::text, name from plants order by plants.id'))

await (await as('alice')).create({ id: 1, name: 'n' })

t.test('a message that is not HTTP/1.1 is rejected, and its connection is closed', async (t) => {
  const body = '{"id":2,"name":"n"}'
  const requests: Record<string, string | Buffer> = {
    'a word': 'hello\r\n\r\n',
    'an empty method': ' /plants HTTP/1.1\r\nHost: x\r\n\r\n',
    'no path': request('GET HTTP/1.1'),
    'no version': request('GET /plants'),
    'HTTP/0.9': 'GET /plants\r\n\r\n',
    'HTTP/1.2': request('GET /plants HTTP/1.2'),
    'HTTP/2.0': request('GET /plants HTTP/2.0'),
    'HTTP/3.0': request('GET /plants HTTP/3.0'),
    'another protocol': request('GET /plants XTTP/1.0'),
    'the preface of HTTP/2': 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
    'the first bytes of TLS': Buffer.from('16030100c8010000c40303', 'hex'),
    'lines ended by LF': request('GET /plants HTTP/1.1').replaceAll('\r\n', '\n'),
    'lines ended by CR': request('GET /plants HTTP/1.1').replaceAll('\r\n', '\r'),
    'a space in the path': request('GET /plants /1 HTTP/1.1'),
    'a control character in the path': request('GET /pla\x01nts HTTP/1.1'),
    'a NUL in the path': request('DELETE /plants/1\0 HTTP/1.1'),
    'a path that is not ASCII': request('DELETE /plants/٥ HTTP/1.1'),
    'a relative path': request('GET plants HTTP/1.1'),
    'a header without a colon': request('GET /plants HTTP/1.1', ['X']),
    'a header without a name': request('GET /plants HTTP/1.1', [': x']),
    'a space before the colon': request('GET /plants HTTP/1.1', ['X : y']),
    'a folded header': request('GET /plants HTTP/1.1', ['X: a', ' b']),
    'a NUL in a header': request('GET /plants HTTP/1.1', ['X: a\0b']),
    'a lone CR in a header': request('GET /plants HTTP/1.1', ['X: a\rb']),
    'both Content-Length and Transfer-Encoding': create(`13\r\n${body}\r\n0\r\n\r\n`,
      ['Content-Length: 30', 'Transfer-Encoding: chunked']),
    'both, the other way round': create(`13\r\n${body}\r\n0\r\n\r\n`,
      ['Transfer-Encoding: chunked', 'Content-Length: 30']),
    'Content-Length twice': create(body, ['Content-Length: 19', 'Content-Length: 19']),
    'two lengths in one header': create(body, ['Content-Length: 19, 19']),
    'a negative length': create(body, ['Content-Length: -1']),
    'a signed length': create(body, ['Content-Length: +19']),
    'a hexadecimal length': create(body, ['Content-Length: 0x13']),
    'an empty length': create(body, ['Content-Length: ']),
    'a length beyond 64 bits': create(body, ['Content-Length: 99999999999999999999']),
    'a transfer encoding other than chunked': create(body, ['Transfer-Encoding: gzip']),
    'chunked not as the last encoding': create(body, ['Transfer-Encoding: chunked, gzip']),
    'chunked twice': create(`13\r\n${body}\r\n0\r\n\r\n`,
      ['Transfer-Encoding: chunked', 'Transfer-Encoding: chunked']),
    'something like chunked': create(`13\r\n${body}\r\n0\r\n\r\n`, ['Transfer-Encoding: xchunked']),
    'a chunk size that is no number': create(`xx\r\n${body}\r\n0\r\n\r\n`, ['Transfer-Encoding: chunked']),
    'a negative chunk size': create(`-13\r\n${body}\r\n0\r\n\r\n`, ['Transfer-Encoding: chunked']),
    'a chunk size beyond 64 bits': create(`fffffffffffffffff\r\n${body}\r\n0\r\n\r\n`,
      ['Transfer-Encoding: chunked']),
    'a chunk longer than its size': create(`12\r\n${body}\r\n0\r\n\r\n`, ['Transfer-Encoding: chunked']),
    'an end that comes before all of the body': create(body.slice(1), ['Content-Length: 19']),
    'an end that comes before the last chunk': create(`13\r\n${body}\r\n`, ['Transfer-Encoding: chunked']),
    'a method of another protocol': request('DESCRIBE /plants RTSP/1.0'),
    'an end that comes in a header': request('GET /plants HTTP/1.1').slice(0, -10),
    'a fragment after the id': request('DELETE /plants/1#2 HTTP/1.1', ['Connection: close']),
    'a fragment after the query': request('GET /plants?limit=1#2 HTTP/1.1', ['Connection: close'])
  }
  for (const [title, text] of Object.entries(requests)) {
    const responses = await exchange(address, [text], { halfClose: true })
    t.equal(responses.length, 1, title)
    isError(t, responses[0], ...malformed, title)
    t.equal(responses[0]?.headers.connection, 'close', title)
  }
  t.same(await stored(), [{ id: '1', name: 'n' }])
})

t.test('headers of more than 16 KiB are rejected, and a long path within that limit is not', async (t) => {
  for (const text of [
    request('GET /plants HTTP/1.1', [`X: ${'x'.repeat(20_000)}`]),
    request('GET /plants HTTP/1.1', Array(3000).fill('X: y')),
    request('GET /plants HTTP/1.1', [`${'X'.repeat(20_000)}: y`]),
    request(`GET /plants?${'x'.repeat(20_000)} HTTP/1.1`),
    `GET /${'x'.repeat(10_000_000)}`
  ]) {
    const responses = await exchange(address, [text])
    t.equal(responses.length, 1)
    isError(t, responses[0], ...longHeaders)
  }
  const tooLong = [41401, 'The URL is too long.'] as const
  const responses = await exchange(address, [
    request(`GET /${'x'.repeat(15_000)} HTTP/1.1`), request(`DELETE /plants/${'1'.repeat(15_000)} HTTP/1.1`),
    request(`GET /plants?${'x'.repeat(15_000)} HTTP/1.1`), last
  ])
  isError(t, responses[0], ...unknownPath)
  isError(t, responses[1], ...tooLong)
  isError(t, responses[2], 40016, 'This name is not a parameter here: use limit or after.')
})

t.test('a chunk extension of more than 16 KiB is rejected', async (t) => {
  const [response] = await exchange(address,
    [create(`1;${'x'.repeat(20_000)}\r\n{\r\n0\r\n\r\n`, ['Transfer-Encoding: chunked'])])
  isError(t, response, 40006, 'The body is larger than this service accepts.')
})

t.test('malformed percent escapes are rejected in the path and in the query', async (t) => {
  const urls = [
    '/%', '/%zz', '/plants%', '/plants/%2', '/plants/%ff', '/plants/%C0%80', '/livez%', '/x/%f%f',
    '/plants?%', '/plants?limit=%zz', '/plants?x=%C0%80&limit=1', '/plants?x=1?%zz'
  ]
  const responses = await exchange(address,
    [...urls.map((url) => request(`${url.startsWith('/plants/') ? 'DELETE' : 'GET'} ${url} HTTP/1.1`)), last])
  t.equal(responses.length, urls.length + 1)
  for (const [index, url] of urls.entries()) isError(t, responses[index], ...badUrl, url)
  t.same(await stored(), [{ id: '1', name: 'n' }])
})

t.test('an HTTP/1.1 request needs exactly one Host header, and an HTTP/1.0 request needs none', async (t) => {
  const rejected = ['', 'Host: x\r\nHost: x\r\n', 'Host: x\r\nHost: y\r\n', 'Host: x, y\r\n']
  const responses = await exchange(address, [
    ...rejected.map((headers) => `GET /livez HTTP/1.1\r\n${headers}\r\n`),
    'GET /livez HTTP/1.1\r\nHost:\r\n\r\n', 'GET /livez HTTP/1.0\r\n\r\n'
  ])
  for (const [index, headers] of rejected.entries()) isError(t, responses[index], ...host, headers)
  t.same(responses.slice(rejected.length).map(({ status }) => status), [200, 200])
})

t.test('two contradicting headers are rejected', async (t) => {
  const bob = (await as('bob')).authorization
  const responses = await exchange(address, [
    `GET /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\nAuthorization: ${bob}\r\n\r\n`,
    create('{"id":2,"name":"n"}', ['Content-Type: text/plain', 'Content-Length: 19']),
    create('{"id":2,"name":"n"}',
      ['Content-Encoding: gzip', 'Content-Encoding: identity', 'Content-Length: 19']),
    last
  ])
  isError(t, responses[0], 40102, 'The bearer token is not valid.')
  isError(t, responses[1], 40004, 'The body must be application/json in UTF-8.')
  isError(t, responses[2], 40005, 'The body must not have a content encoding: send it uncompressed.')
  t.same(await stored(), [{ id: '1', name: 'n' }])
})

t.test('a body may come in chunks, with trailers and extensions, or after 100 Continue', async (t) => {
  const chunked = ['Transfer-Encoding: Chunked']
  const responses = await exchange(address, [
    create(
      '1\r\n{\r\n1;x=y\r\n"\r\n0010\r\nid":11,"name":"é\r\n2\r\n"}\r\n0\r\nX-Trailer: y\r\n\r\n', chunked
    ).replace('é', 'n'),
    create('4\r\n{"id\r\n8\r\n":12,"na\r\n', chunked), 'B\r\nme":"\xC3', '\xA9"}  \r\n0\r\n\r\n',
    create('{"id":13,"name":"n"}', ['Content-Length: 20', 'Expect: 100-Continue']),
    last
  ].map((part) => Buffer.from(part, 'latin1')))
  t.same(responses.map(({ status }) => status), [200, 200, 100, 200, 200])
})

t.test('a request without a body is rejected as empty at once', async (t) => {
  const [response, next] = await exchange(address, [create('', []), last])
  isError(t, response, ...noPlant)
  t.equal(next?.status, 200)
})

t.test('a client that half-closes after its requests gets all responses', async (t) => {
  const requests = request('GET /plants HTTP/1.1') + request('GET /plants?limit=0 HTTP/1.1') +
    request('GET /livez HTTP/1.1')
  const responses = await exchange(address, [requests], { halfClose: true })
  t.match(responses,
    [{ status: 200, body: /^\[\{/ }, { status: 200, body: '[]' }, { status: 200, body: '{"status":"ok"}' }])
})

t.test('an expectation other than 100-continue is rejected, and the connection is closed', async (t) => {
  const expectations = ['banana', '100-continued', '200-ok', '100-continue, banana', '']
  for (const expectation of expectations) {
    const responses = await exchange(address,
      [create('', ['Content-Length: 19', `Expect: ${expectation}`]), '{"id":2,"name":"n"}', last])
    t.equal(responses.length, 1)
    isError(t, responses[0], 41701, 'The only supported expectation is 100-continue.', expectation)
  }
  t.notOk((await stored()).some(({ id }) => id === '2'))
})

t.test('CONNECT is rejected, and the connection is closed', async (t) => {
  const [response] = await exchange(address, [request('CONNECT x:443 HTTP/1.1')])
  isError(t, response, ...wrongMethod)
  t.match(response?.headers, { allow: 'GET, HEAD, POST, DELETE', connection: 'close' })
})

t.test('the service does not upgrade a connection', async (t) => {
  const [response] = await exchange(address, [
    request('GET /livez HTTP/1.1',
      ['Connection: close, upgrade', 'Upgrade: h2c, websocket', 'HTTP2-Settings: AAMAAABkAAQAAP__'])
  ])
  t.match(response, { status: 200, body: '{"status":"ok"}' })
})

t.test('a known path rejects other methods, including OPTIONS, and lists its own in Allow', async (t) => {
  const { '/plants': plants = '', '/plants/1': plant = '' } = examplePaths
  const paths: Record<string, string> = {
    ...examplePaths,
    '/plants?limit=x': plants,
    '/%70lants': plants,
    'http://example.org/plants': plants,
    'HTTPS://x:1/plants?/x': plants,
    '/plants/x': plant,
    'http://x': examplePaths['/'] as string,
    'http://x?plants': examplePaths['/'] as string
  }
  for (const [path, allow] of Object.entries(paths)) {
    const rejected = METHODS.filter((method) => method !== 'CONNECT' && !allow.split(', ').includes(method))
    const responses = await exchangeAll(rejected.map((method) => request(`${method} ${path} HTTP/1.1`)),
      [rejected.indexOf('HEAD')])
    for (const [index, method] of rejected.entries()) {
      t.equal(responses[index]?.headers.allow, allow, `${method} ${path}`)
      if (method !== 'HEAD') isError(t, responses[index], ...wrongMethod, `${method} ${path}`)
    }
  }
})

t.test('any other path is rejected as unknown with every method', async (t) => {
  const paths = [
    '/x', '/plant', '/Plants', '/PLANTS', '//plants', '/plants//', '/plants/1/2', '/plants%2F1', '/./plants',
    '/plants/../livez', '/livez/x', '/__proto__', '/constructor', '/*', '*', '/:id', 'ftp://x/plants',
    '/livez;x', '/v1/plants', '/favicon.ico'
  ]
  for (const method of METHODS.filter((method) => method !== 'CONNECT' && method !== 'HEAD')) {
    const responses = await exchangeAll(paths.map((path) => request(`${method} ${path} HTTP/1.1`)))
    for (const [index, path] of paths.entries()) {
      isError(t, responses[index], ...unknownPath, `${method} ${path}`)
    }
  }
})

t.test('a path with a trailing slash is unknown, and the message names the right path', async (t) => {
  const paths = {
    '/plants/': '/plants',
    '/plants/?limit=1': '/plants',
    'http://x/livez/': '/livez',
    '/plants/1/': '/plants/:id',
    '//': '/'
  }
  const responses = await exchangeAll(Object.keys(paths).map((path) => request(`GET ${path} HTTP/1.1`)))
  for (const [index, [path, known]] of Object.entries(paths).entries()) {
    isError(t, responses[index], 40401, `There is nothing at this path: use ${known}.`, path)
  }
})

t.test('an unknown method gets 501, and the connection is closed', async (t) => {
  for (const before of ['', request('GET /livez HTTP/1.1'), '\r\n']) {
    for (const method of ['FOO', 'get', 'GETT', 'PUTT', 'M-FOO', 'BREW', 'a']) {
      const responses =
        await exchange(address, [`${before}${request(`${method} /plants HTTP/1.1`)}`], { halfClose: true })
      isError(t, responses.at(-1), 50101, 'This service does not know this method.', method)
      t.equal(responses.at(-1)?.headers.connection, 'close')
    }
    const responses = await exchange(address, [`${before}hello\r\n\r\n`], { halfClose: true })
    isError(t, responses.at(-1), ...malformed, 'not a request line')
  }
})

t.test('the root names the documents and redirects browsers to the reference page', async (t) => {
  const accept = 'Accept: text/html,application/xhtml+xml,*/*;q=0.8'
  const [forPrograms, forPeople, head] = await exchange(address, [
    request('GET / HTTP/1.1'), request('GET / HTTP/1.1', [accept]),
    request('HEAD / HTTP/1.1', ['Connection: close'])
  ], { heads: [2] })
  t.match(forPrograms, {
    status: 200,
    headers: { 'content-type': 'application/json', vary: 'accept' },
    body: '{"docs":"./docs","openapi":"./openapi.json"}'
  })
  t.match(forPeople, { status: 302, headers: { location: './docs', vary: 'accept' } })
  t.match(head, { status: 200, body: '' })

  const { app } = await startApp(t, { DOCS: 'off' })
  const withoutDocs = await app.inject({ url: '/', headers: { accept: 'text/html' } })
  t.match([withoutDocs.statusCode, withoutDocs.body], [200, '{"openapi":"./openapi.json"}'])
})

t.test('HEAD gets the response of GET without the body', async (t) => {
  for (const path of [
    '/plants', '/plants?limit=0', '/plants?limit=x', '/plants?%', '/livez', '/readyz', '/openapi.json', '/x',
    '/%'
  ]) {
    const [get, head] = await exchange(
      address,
      [request(`GET ${path} HTTP/1.1`), request(`HEAD ${path} HTTP/1.1`, ['Connection: close'])],
      { heads: [1] }
    )
    const { date: _, 'x-request-id': ___, connection, 'keep-alive': __, ...headers } = get?.headers ?? {}
    t.match(head, { status: get?.status, headers, body: '' }, path)
  }
  const [anonymous] = await exchange(address,
    ['HEAD /plants HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'], { heads: [0] })
  t.match(anonymous, { status: 401, headers: { 'www-authenticate': 'Bearer realm="plants"' } })
})

t.test('headers and parameters cannot override the method or the path', async (t) => {
  const headers = [
    'X-HTTP-Method-Override: DELETE', 'X-HTTP-Method: DELETE', 'X-Method-Override: DELETE',
    'X-Original-URL: /plants/1', 'X-Rewrite-URL: /plants/1', 'Accept-Version: 2'
  ]
  const responses = await exchange(address, [
    request('POST /plants/1?_method=DELETE HTTP/1.1', headers), request('GET /plants HTTP/1.1', headers), last
  ])
  isError(t, responses[0], ...wrongMethod)
  t.equal(responses[1]?.status, 200)
  t.ok((await stored()).some(({ id }) => id === '1'))
})

t.test('every rejected request is logged, none as an error of the service', async (t) => {
  const lines = log.map((line) => JSON.parse(line))
  // Ignore lines without an error number, such as a warning about event-loop lag on a busy machine.
  t.same(lines.filter(({ error, level }) => error !== undefined && /warn|error|fatal/.test(level)), [])
  for (const number of [40001, 40002, 40003, 41401, 41701, 43101, 40401, 40501, 50101]) {
    t.ok(lines.some(({ error, level, remoteAddress }) =>
      error === number && level === 'info' && remoteAddress === '127.0.0.1'), `${number}`)
  }
})
