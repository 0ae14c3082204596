// Tests the proxies of deploy/ in front of a test server, which fails on the paths /close, /end and /cut.
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import { readFile, writeFile } from 'node:fs/promises'
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import { connect } from 'node:net'
import { join } from 'node:path'
import { buffer, text } from 'node:stream/consumers'
import { connect as connectTls } from 'node:tls'
import { promisify } from 'node:util'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { base, findImage, openNetwork, run, until } from './support.ts'

const deploy = join(import.meta.dirname, '../../../deploy')
const { start } = await openNetwork(t)
const upstream = await start('--network-alias=plant-store-1', '--publish=127.0.0.1::443', base,
  'sh', '-c', 'node -e "$0"; exec sleep infinity', `require('node:http').createServer((request, response) => {
    const { url, headers, httpVersion, socket } = request
    if (url === '/close') return socket.destroy()
    if (url === '/end') process.exit()
    response.setHeader('content-type', url === '/script' ? 'text/javascript' : 'application/json')
    if (url === '/cut') return response.write('[', () => setTimeout(() => socket.destroy(), 100))
    const list = JSON.stringify(Array(200).fill({ name: 'Monstera', tag: 'tropical' }))
    if (url === '/chunked') return response.write(list, () => response.end(list))
    if (url === '/script') response.setHeader('etag', '"script"')
    if (url === '/list' || url === '/script') {
      return response.setHeader('content-length', list.length).end(list)
    }
    request.resume().on('end', () => response.end(JSON.stringify({ headers, httpVersion })))
  }).listen(3000)`)

/** Returns functions that send requests to a proxy, once the proxy forwards a request. */
async function connectTo (container: string, containerPort: number, isSecure = false) {
  const port = await portOf(container, containerPort)
  const server = { port, host: '127.0.0.1', rejectUnauthorized: false }

  async function send (request: string) {
    const socket = isSecure ? connectTls(server) : connect(server)
    socket.write(request)
    const [headers = '', body = ''] = (await text(socket)).split('\r\n\r\n')
    return { status: Number(headers.split(' ')[1]), headers, body }
  }

  /** Returns a response without decoding its body. */
  async function load (path: string, encoding: string) {
    const options = { ...server, path, agent: false, headers: { 'accept-encoding': encoding } }
    const request = isSecure ? https.get(options) : http.get(options)
    const [response] = await once(request, 'response') as [IncomingMessage]
    return { headers: response.headers, body: await buffer(response) }
  }

  await until(() => send(get('/livez')).catch(() => undefined), (response) => response?.status === 200)
  return { send, load }
}

const get = (path: string, headers = '') =>
  `GET ${path} HTTP/1.1\r\nHost: plants.example.com\r\nConnection: close\r\n${headers}\r\n`

const portOf = async (container: string, port: number) =>
  Number((await run('port', container, `${port}/tcp`)).split(':')[1])

const certificates = t.testdir()
const files = { key: join(certificates, 'plants.key'), crt: join(certificates, 'plants.crt') }
await promisify(execFile)('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes',
  '-subj=/CN=plants.example.com', '-keyout', files.key, '-out', files.crt])
await writeFile(join(certificates, 'plants.pem'), [await readFile(files.crt), await readFile(files.key)])

async function startHaproxy (isSecure = false, ...args: string[]) {
  const image = await findImage('haproxy:3.4')
  const port = isSecure ? 3443 : 3000
  if (isSecure) args.push('--env=CERTIFICATE=/tls/plants.pem', `--volume=${certificates}:/tls:ro`)
  const id = await start(`--publish=127.0.0.1::${port}`, '--read-only', ...args,
    `--volume=${deploy}/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro`,
    `--volume=${deploy}/errors:/usr/local/etc/haproxy/errors:ro`, image)
  const version = await run('exec', id, 'haproxy', '-v')
  return {
    id,
    ...await connectTo(id, port, isSecure),
    hasOwnPage: /version (2|3\.[0-2])\./.test(version),
    compressesAll: /version (2|3\.[01])\./.test(version)
  }
}

async function startNginx () {
  // Run nginx in the upstream's network namespace, as if nginx and the upstream were on one machine.
  const id = await start(`--network=container:${upstream}`, `--volume=${certificates}:/etc/nginx/tls:ro`,
    `--volume=${deploy}/nginx.conf:/etc/nginx/conf.d/default.conf:ro`, await findImage('nginx:1.28'))
  return { id, ...await connectTo(upstream, 443, true), hasOwnPage: false, compressesAll: false }
}

const proxies = {
  haproxy: await startHaproxy(),
  'haproxy with TLS': await startHaproxy(true),
  nginx: await startNginx()
}

type Case = [request: string, error: number, allow?: string]

const malformed: Case[] = [
  ['GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n', 40001],
  ['GET / HTTP/2.0\r\nHost: a\r\n\r\n', 40001],
  [get('/', 'Transfer-Encoding: gzip, chunked\r\n'), 40001],
  [get('/', 'Transfer-Encoding: foo\r\n'), 40001]
]
const ownErrors: Case[] = [[get('/close'), 50291]]
const nginxErrors: Case[] = [
  [get('/errors/40091'), 40401],
  [get('/plants?limit=1').replace('GET', 'TRACE'), 40501, 'GET, HEAD, POST']
]

for (const [name, { id, send, load, hasOwnPage, compressesAll }] of Object.entries(proxies)) {
  await t.test(`${name} compresses JSON and scripts above 1 KiB`, async (t) => {
    for (const path of ['/list', '/chunked', '/script']) {
      const [plain, packed] = [await load(path, 'identity'), await load(path, 'gzip')]
      t.equal(plain.headers['content-encoding'], undefined, path)
      t.equal(packed.headers['content-encoding'], 'gzip', path)
      t.match(packed.headers.vary, /accept-encoding/i, path)
      t.ok(packed.body.length < plain.body.length / 10, path)
      t.ok(gunzipSync(packed.body).equals(plain.body), path)
    }
    const { headers, body } = await load('/', 'gzip')
    t.equal(headers['content-encoding'], compressesAll ? 'gzip' : undefined, `${body.length} bytes`)
    if (compressesAll) t.comment('this version of HAProxy has no lower limit for compression')
  })

  await t.test(`${name} replaces the client's X-Forwarded-For with its address`, async (t) => {
    const { body } = await send(get('/', 'X-Forwarded-For: 1.2.3.4\r\n'))
    const { headers, httpVersion } = JSON.parse(body)
    t.strictSame([httpVersion, headers.host], ['1.1', 'plants.example.com'])
    t.match(headers['x-forwarded-for'], /^(?!1\.2\.3\.4$)\d+\.\d+\.\d+\.\d+$/)
  })

  await t.test(`${name} forwards a request without its Upgrade`, async (t) => {
    const upgrade = get('/').replace('Connection: close', 'Connection: upgrade, close\r\nUpgrade: foo')
    const { status, body } = await send(upgrade)
    t.equal(status, 200)
    t.notOk('upgrade' in JSON.parse(body).headers, body)
  })

  await t.test(`${name}'s own errors have the service's JSON shape`, async (t) => {
    const cases = [...ownErrors, ...hasOwnPage ? [] : malformed, ...name === 'nginx' ? nginxErrors : []]
    for (const [request, error, allow] of cases) {
      const { status, headers, body } = await send(request)
      const line = request.slice(0, request.indexOf('\r\n'))
      t.equal(status, Math.floor(error / 100), line)
      t.match(headers, /^content-type: application\/json\r?$/im, line)
      t.match(headers, /^cache-control: no-store\r?$/im, line)
      t.equal(/^allow: (.*?)\r?$/im.exec(headers)?.[1], allow, line)
      t.match(JSON.parse(body), { error, message: /^[A-Z].*\.$/ }, line)
    }
    if (hasOwnPage) t.comment('this version of HAProxy responds in HTML to a request that it cannot parse')
  })

  // test/access/credentials.test.ts tests the same limit without a proxy.
  await t.test(`a token of 16,000 characters passes ${name}, and 17,000 are too many`, async (t) => {
    for (const [length, status] of [[15_000, 200], [16_000, 200], [17_000, 431]] as const) {
      const response = await send(get('/', `Authorization: Bearer ${'x'.repeat(length)}\r\n`))
      t.equal(response.status, status, `${length}`)
    }
  })

  await t.test(`a list that breaks off behind ${name} also breaks off for the client`, async (t) => {
    const { status, headers, body } = await send(get('/cut'))
    t.equal(status, 200)
    t.match(headers, /^transfer-encoding: chunked\r?$/im)
    t.notMatch(body, /\r\n0\r\n/, 'no last chunk')
    await t.rejects(load('/cut', 'gzip'), { code: 'ECONNRESET' })
  })

  await t.test(`${name} logs each request in JSON, without query or token`, async (t) => {
    const jwt = 'eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.abc-DEF_123'
    for (const [token, start] of [['plant_abcDEF123', 'plant_'], [jwt, 'eyJ']] as const) {
      await send(get(`/plants/${token}?token=${token}`))
      const isLine = (line: string) => line.includes(`/${start}`)
      const log = await until(() => run('logs', id), isLine)
      const line = JSON.parse(/\{.*/.exec(log.split('\n').find(isLine) as string)?.[0] as string)
      t.match(line, { level: 'info', method: 'GET', remoteAddress: /^\d/, status: /^200$/ })
      t.equal(line.path, `/plants/${start}`)
      t.notMatch(log, 'DEF')
    }
  })
}

await t.test('HAProxy limits the requests and connections of an address', async (t) => {
  const { id, send } =
    await startHaproxy(false, '--env=REQUESTS_PER_10_SECONDS=20', '--env=CONNECTIONS_PER_ADDRESS=5')
  const { status, headers, body } = await until(() => send(get('/')), ({ status }) => status !== 200)
  t.equal(status, 429)
  t.equal(JSON.parse(body).error, 42991)
  t.match(headers, /^retry-after: 10\r?$/im)
  const port = await portOf(id, 3000)
  const connections = Array.from({ length: 10 }, () => connect(port, '127.0.0.1'))
  const closed = async () =>
    connections.filter(({ readableEnded, destroyed }) => readableEnded || destroyed).length
  await until(closed, (count) => count === 5)
  for (const connection of connections) connection.destroy()
})

await t.test('a proxy without a reachable instance responds with 503 and Retry-After', async (t) => {
  await proxies.haproxy.send(get('/end'))
  for (const [name, { send }] of Object.entries(proxies)) {
    const ask = () => send(get('/')).catch(() => ({ status: 0, headers: '', body: '' }))
    const { headers, body } = await until(ask, ({ status }) => status === 503)
    t.equal(JSON.parse(body).error, 50391, name)
    t.match(headers, /^retry-after: 1\r?$/im)
  }
})
