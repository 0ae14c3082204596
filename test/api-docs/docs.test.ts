// Tests the reference page at /docs, and the document of an operation without errors of its own.
import { connect } from 'node:net'
import { Type } from '@sinclair/typebox'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { readScalar } from '../../dev/write-scalar.ts'
import { startApp } from '../support/app.ts'

const withoutDatabase = { DATABASE_URL: 'postgres://x@127.0.0.1:1/x' }
const { app } = await startApp(t, withoutDatabase)
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
