// Tests the document openapi.json, and the reference page at /docs.
import { readFile } from 'node:fs/promises'
import { connect } from 'node:net'
import { gunzipSync } from 'node:zlib'
import { Type } from '@sinclair/typebox'
import t from 'tap'
import { readScalar } from '../../dev/write-scalar.ts'
import { catalogue } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'

interface RawResponse {
  description: string
  headers?: Record<string, { schema: { examples: unknown[] } }>
  content?: Record<string, { example?: object, examples?: Record<string, { value: { error: number } }> }>
}
interface Operation { operationId: string, tags: string[], responses: Record<string, RawResponse> }

const text = await readFile('openapi.json', 'utf8')
const document = JSON.parse(text)
const page = await readFile('docs/api.md', 'utf8')
const paths = Object.entries<Record<string, Operation>>(document.paths)
const operations = paths.flatMap(([, methods]) => Object.values(methods))
const responses = operations.flatMap(({ responses }) => Object.values(responses))
const exampleOf = (response: RawResponse, number: number) =>
  Object.values(response.content?.['application/json']?.examples ?? {})
    .find(({ value }) => value.error === number)

const { app, as } = await startApp(t, { BODY_LIMIT: '1000' })

t.test('openapi.json is served unchanged, with single statuses, described tags and examples', async (t) => {
  t.equal((await app.inject('/openapi.json')).body, text, 'if the change is meant, run `npm run openapi`')
  for (const [path, methods] of paths.filter(([path]) => path.includes('{'))) {
    for (const { responses } of Object.values(methods)) t.ok(responses[404], `${path} lists an unknown id`)
  }
  t.notMatch(text, /"\$ref": "(?!#\/)/, 'each schema with an id is added to the app')
  // Generators of clients do not understand ranges of statuses.
  const statuses = operations.flatMap(({ responses }) => Object.keys(responses))
  t.strictSame(statuses.filter((status) => !/^[2-5]\d\d$/.test(status)), [])
  const described = document.tags.map(({ name }: { name: string }) => name)
  t.strictSame(operations.flatMap(({ tags }) => tags).filter((tag) => !described.includes(tag)), [])
  for (const { description, content = {} } of responses) {
    for (const { example, examples } of Object.values(content)) t.ok(example ?? examples, description)
  }
})

t.test('the document lists every error, and has an example of each', async (t) => {
  const { description } = document.tags.find(({ name }: { name: string }) => name === 'Errors')
  for (const { name, number, message } of catalogue.values()) {
    t.match(description.replaceAll('\\', ''), `| ${number} | ${name} | ${message} |`)
    // No documented operation has these errors. They are for unknown paths, wrong methods and probes.
    if (['PATH_UNKNOWN', 'METHOD_NOT_ALLOWED', 'METHOD_UNKNOWN', 'STOPPING'].includes(name)) continue
    const examples = responses.flatMap((response) => exampleOf(response, number) ?? [])
    t.ok(examples.length > 0, name)
    for (const { value } of examples) t.match(value, { error: number, message })
  }
})

t.test('errors have the number and the headers that the document lists', async (t) => {
  const { authorization } = await as('alice')
  const readOnly = (await as('alice', { readOnly: true })).authorization
  const json = { authorization, 'content-type': 'application/json' }
  await app.inject({ method: 'POST', url: '/plants', headers: json, payload: { id: 1, name: 'Monstera' } })
  const bodies = [
    '{', '[]', '{ "__proto__": 1 }', '{ "id": 1, "name": "Monstera" }', '{ "id": 2 }',
    '{ "id": 2, "name": 5 }', '{ "id": 9223372036854775808, "name": "Monstera" }',
    'x'.repeat(1001), Buffer.from([0xff])
  ]
  const requests = [
    ...bodies.map((body) => ['post', '/plants', '/plants', json, body] as const),
    ['post', '/plants', '/plants', { ...json, 'content-encoding': 'gzip' }, '{}'],
    ['post', '/plants', '/plants', { ...json, 'content-type': 'text/plain' }, '{}'],
    ['post', '/plants', '/plants', { ...json, authorization: readOnly }, '{}'],
    ['get', '/plants', '/plants', {}],
    ['get', '/plants', '/plants', { authorization: 'Bearer plant_1' }],
    ['get', '/plants', '/plants?limit=-1', { authorization }],
    ['get', '/plants', '/plants?a=%zz', { authorization }],
    ['delete', '/plants/{id}', '/plants/1.5', { authorization }],
    ['delete', '/plants/{id}', '/plants/2', { authorization }],
    ['delete', '/plants/{id}', `/plants/${'1'.repeat(2000)}`, { authorization }],
    ['delete', '/plants/{id}', '/plants/1', { ...json, 'content-type': 'text/plain' }, '1'],
    ['delete', '/plants/{id}', '/plants/1', { authorization: readOnly }]
  ] as const
  const sent = new Set<string>(requests.map(([method, path]) => `${method} ${path}`))
  for (const [path, methods] of paths) {
    for (const method of Object.keys(methods)) t.ok(sent.has(`${method} ${path}`), `${method} ${path}`)
  }
  for (const [method, path, url, headers, payload] of requests) {
    const response = await app.inject({ method, url, headers, payload })
    const { error } = response.json()
    const documented: RawResponse = document.paths[path][method].responses[response.statusCode]
    t.ok(exampleOf(documented, error), `${method} ${path} ${error}`)
    for (const name of ['www-authenticate', 'retry-after']) {
      const examples = documented?.headers?.[name]?.schema.examples ?? [undefined]
      t.ok(examples.includes(response.headers[name]), `${error}: ${name}`)
    }
  }
})

t.test('every response has the headers that the document lists, and only params cause 414', async (t) => {
  const limited = await startApp(t, { USER_RATE: '9/m', USER_BURST: '4' })
  const [alice, reader] = [await limited.as('alice'), await limited.as('alice', { readOnly: true })]
  const list: Operation = document.paths['/plants'].get
  const remove: Operation = document.paths['/plants/{id}'].delete
  const seen: number[] = []
  for (const [operation, send] of [
    [list, () => limited.app.inject('/plants')], [list, () => alice.list()], [list, () => alice.list('?x')],
    [remove, () => reader.delete(1)], [remove, () => alice.delete(1)], [list, () => alice.list()]
  ] as const) {
    const response = await send()
    const documented = operation.responses[response.statusCode]
    const common = ['x-request-id', 'ratelimit', 'ratelimit-policy']
    t.strictSame(common.filter((name) => name in (documented?.headers ?? {})),
      common.filter((name) => name in response.headers), `${response.statusCode}`)
    seen.push(response.statusCode)
  }
  t.strictSame(seen, [401, 200, 400, 403, 404, 429])
  const with414 = paths.filter(([, methods]) =>
    Object.values(methods).some(({ responses }) => '414' in responses)).map(([path]) => path)
  t.strictSame(with414, paths.map(([path]) => path).filter((path) => path.includes('{')))
})

t.test('docs/api.md has a row for every operation and for every field of a create', async (t) => {
  const common = /^\| Operation .* than (.*) and 5xx \|$/m.exec(page)?.[1]?.split(', ') as string[]
  for (const [path, methods] of paths) {
    for (const [method, { responses }] of Object.entries(methods)) {
      const example = `${method.toUpperCase()} ${path.replaceAll(/\{\w+\}/g, '\\d+')}`
      const [row, statuses] = new RegExp(`^\\|.*\`${example}\\b.*\\| (.*) \\|$`, 'm').exec(page) ?? []
      const [success, ...errors] = Object.keys(responses).filter((status) => !/^5/.test(status))
      t.match(row, `| ${success}`, example)
      t.equal(statuses, errors.filter((status) => !common.includes(status)).join(', '), example)
      t.ok(common.every((status) => errors.includes(status)), example)
    }
  }
  const schemas = Object.entries<{ properties: object }>(document.components.schemas)
  const fields = schemas.flatMap(([name, { properties }]) => /^New/.test(name) ? Object.keys(properties) : [])
  t.ok(fields.includes('tag'))
  for (const field of fields) t.match(page, new RegExp(`^\\| [^|]*\`${field}\``, 'm'), field)
})

const withoutDatabase = { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' }
const urls = ['/docs', '/docs/docs.css', '/docs/docs.js', '/docs/scalar.js']

t.test('the files of the page have a strict policy and ETags', async (t) => {
  for (const url of urls) {
    const { headers: { 'x-request-id': _id, date: _date, ...headers } } = await app.inject(url)
    const policy = String(headers['content-security-policy'])
    t.match(policy, /default-src 'none'; script-src 'self'; .*connect-src 'self'/, url)
    t.notMatch(policy, /unsafe-eval|http/)
    t.match(await app.inject({ method: 'HEAD', url }), { statusCode: 200, body: '', headers }, url)
    const post = await app.inject({ method: 'POST', url })
    t.match(post, { statusCode: 405, headers: { allow: 'GET, HEAD' } }, url)
  }
  t.match(await app.inject('/docs/'), { statusCode: 308, headers: { location: '../docs' } })
  const url = '/docs/scalar.js'
  const { headers: { etag, ...headers } } = await app.inject(url)
  t.match(headers, { 'content-type': 'text/javascript; charset=utf-8', 'cache-control': /max-age/ })
  // nginx makes the ETag of a compressed response weak.
  const again = await app.inject({ url: `${url}?x`, headers: { 'if-none-match': `"x", W/${etag}` } })
  t.match(again, { statusCode: 304, body: '', headers: { etag } })
})

t.test('the files are compressed with gzip for clients that accept gzip', async (t) => {
  for (const url of urls) {
    const plain = await app.inject(url)
    t.match(plain.headers, { 'content-encoding': undefined, vary: 'accept-encoding' }, url)
    const headers = { 'accept-encoding': 'gzip' }
    const packed = await app.inject({ url, headers })
    t.match(packed.headers, { 'content-encoding': 'gzip', vary: 'accept-encoding' }, url)
    t.equal(packed.headers['content-length'], String(packed.rawPayload.length))
    t.ok(gunzipSync(packed.rawPayload).equals(plain.rawPayload), url)
    t.not(packed.headers.etag, plain.headers.etag)
    const known = { 'if-none-match': packed.headers.etag }
    t.match(await app.inject({ url, headers: { ...headers, ...known } }), { statusCode: 304, body: '' })
    t.match(await app.inject({ url, headers: known }), { statusCode: 200 }, 'another file')
  }
  for (const [encoding, all] of [
    ['gzip', ['br, GZIP;q=0.5', 'deflate,gzip ; q=1']],
    [undefined, ['identity', 'br', 'xgzip', 'gzipx', 'gzip;q=0', 'gzip ; q=0.000, br']]
  ] as const) {
    for (const accepted of all) {
      const { headers } = await app.inject({ url: '/docs', headers: { 'accept-encoding': accepted } })
      t.equal(headers['content-encoding'], encoding, accepted)
    }
  }
  const { rawPayload } = await app.inject({ url: '/docs/scalar.js', headers: { 'accept-encoding': 'gzip' } })
  t.ok(rawPayload.length < 1_500_000, `${rawPayload.length}`)
})

t.test('the page begins with the introduction and the operations, as HTML', async (t) => {
  const { body } = await app.inject('/docs')
  for (const part of [
    '<h1>Plant store</h1>', '<a href="openapi.json">', '<code>plant-store token create &lt;user></code>',
    '<pre><code>curl "$BASE/plants" -H "Authorization: Bearer $TOKEN"',
    '<li><code>DELETE /plants/{id}</code> Delete a plant</li>'
  ]) t.match(body, part)
  t.notMatch(body, /[`{}]{2}/, 'no Markdown and no placeholder is left')
})

t.test('the script is the one of the installed package, after its license: npm run scalar', async (t) => {
  const { body } = await app.inject('/docs/scalar.js')
  t.ok(body === await readScalar())
  t.match(body, /^\/\*!\n@scalar\/api-reference\n\nMIT License\n/)
})

t.test('unread files of the reference page take part in the memory budget', async (t) => {
  const { app, listen, metricsUrl } = await startApp(t, {
    ...withoutDatabase, MEMORY_BUDGET: '16777216', METRICS_PORT: '0', TRUSTED_PROXIES: 'loopback'
  })
  const { hostname, port } = new URL(await listen())
  // Some proxies send the port of the client. Then the address is the proxy's, because an address with a port
  // would be a client of its own for each connection.
  let clientPort = 0
  const header = () => `127.0.0.1:${++clientPort}`
  const status = async () =>
    (await app.inject({ url: '/openapi.json', headers: { 'x-forwarded-for': header() } })).statusCode
  t.equal(await status(), 200)
  // One address may use half of the memory budget: 128 files, each with 64 KiB in memory.
  const clients = Array.from({ length: 130 }, () => connect(Number(port), hostname).pause())
  t.teardown(() => { for (const client of clients) client.destroy() })
  const request = () => `GET /docs/scalar.js HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: ${header()}\r\n\r\n`
  for (const client of clients) client.on('connect', () => client.write(request()))
  // The buffers of the system hold some files. So each client requests another one after each file.
  app.server.on('request', ({ socket: { remotePort } }, response) => response.once('close', () =>
    clients.find(({ localPort }) => localPort === remotePort)?.write(request())))
  while (await status() === 200);
  t.equal((await app.inject('/livez')).statusCode, 200)
  const series = await (await fetch(metricsUrl)).text()
  t.match(series, /^plant_store_overload_refusals_total\{kind="docs"\} [1-9]/m)
  for (const client of clients) client.destroy()
  while (await status() !== 200);
})

t.test('HEAD requests for the reference page leave no work that delays later ones', async (t) => {
  const head = () => app.inject({ method: 'HEAD', url: '/docs/scalar.js' })
  await head()
  let ticks = 0
  let timer = setImmediate(function count () {
    ticks++
    timer = setImmediate(count)
  })
  for (let sent = 0; sent < 100; sent++) await head()
  clearImmediate(timer)
  t.ok(ticks < 500, `${ticks}`)
})

t.test('without the page, the document still describes all operations', async (t) => {
  const { app } = await startApp(t, { ...withoutDatabase, DOCS: 'off' }, async (guarded) => {
    const schema = { tags: ['Pots'], operationId: 'listPots', response: { 200: Type.Array(Type.String()) } }
    guarded.get('/pots', { schema }, async () => [])
  })
  for (const url of [...urls, '/docs/']) t.equal((await app.inject(url)).json().error, 40401, url)
  const { responses } = (await app.inject('/openapi.json')).json().paths['/pots'].get
  t.match(responses[200].content['application/json'].schema, { type: 'array', items: { type: 'string' } })
  t.strictSame(Object.keys(responses).slice(0, 3), ['200', '400', '401'])
})
