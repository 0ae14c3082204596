// Tests the proxies of deploy/ in front of a test server, which fails on the paths /close, /end and /cut.
import { execFile } from 'node:child_process'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import { connect } from 'node:net'
import { text } from 'node:stream/consumers'
import { promisify } from 'node:util'
import t from 'tap'
import { base, findImage, openNetwork, run, until } from './support.ts'

t.setTimeout(120_000)

const deploy = join(import.meta.dirname, '../../../deploy')
const { start } = await openNetwork(t)
const upstream = await start('--network-alias=plant-store-1', '--publish=127.0.0.1::443', base,
  'sh', '-c', 'node -e "$0"; exec sleep infinity', `require('node:http').createServer((request, response) => {
    const { url, headers, httpVersion, socket } = request
    if (url === '/close') return socket.destroy()
    if (url === '/end') process.exit()
    if (url === '/cut') return response.write('[', () => setTimeout(() => socket.destroy(), 100))
    request.resume().on('end', () => response.end(JSON.stringify({ headers, httpVersion })))
  }).listen(3000)`)

type RawResponse = { status: number, headers: string, body: string }

async function exchange (port: number, secure: boolean, request: string): Promise<RawResponse> {
  const host = '127.0.0.1'
  const socket = secure ? connectTls({ port, host, rejectUnauthorized: false }) : connect(port, host)
  socket.write(request)
  const [headers = '', body = ''] = (await text(socket)).split('\r\n\r\n')
  return { status: Number(headers.split(' ')[1]), headers, body }
}

const get = (path: string, headers = '') =>
  `GET ${path} HTTP/1.1\r\nHost: plants.example.com\r\nConnection: close\r\n${headers}\r\n`

const portOf = async (container: string, port: number) =>
  Number((await run('port', container, `${port}/tcp`)).split(':')[1])

async function startHaproxy (...args: string[]) {
  const image = await findImage('haproxy:3.4')
  const id = await start('--publish=127.0.0.1::3000', '--read-only', ...args,
    `--volume=${deploy}/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro`,
    `--volume=${deploy}/errors:/usr/local/etc/haproxy/errors:ro`, image)
  const port = await portOf(id, 3000)
  const send = (request: string) => exchange(port, false, request)
  await until(() => send(get('/livez')).catch(() => undefined), (response) => response?.status === 200)
  const version = await run('exec', id, 'haproxy', '-v')
  return { id, send, hasOwnPage: /version (2|3\.[0-2])\./.test(version) }
}

const proxies = {
  haproxy: await startHaproxy(),
  nginx: await startNginx()
}

async function startNginx () {
  const certificates = t.testdir()
  const [key, certificate] = [join(certificates, 'plants.key'), join(certificates, 'plants.crt')]
  await promisify(execFile)('openssl', ['req', '-x509', '-newkey', 'rsa:2048', '-nodes',
    '-subj=/CN=plants.example.com', '-keyout', key, '-out', certificate])
  // Run nginx in the upstream's network namespace, as if nginx and the upstream were on one machine.
  const id = await start(`--network=container:${upstream}`, `--volume=${certificates}:/etc/nginx/tls:ro`,
    `--volume=${deploy}/nginx.conf:/etc/nginx/conf.d/default.conf:ro`, await findImage('nginx:1.28'))
  const port = await portOf(upstream, 443)
  const send = (request: string) => exchange(port, true, request)
  await until(() => send(get('/')).catch(() => undefined), (response) => response?.status === 200)
  return { id, send, hasOwnPage: false }
}

type Case = [request: string, error: number, allow?: string]

const malformed: Case[] = [
  ['GET / HTTP/1.1\r\nHost: a\r\nno colon\r\n\r\n', 40001],
  ['GET / HTTP/2.0\r\nHost: a\r\n\r\n', 40001],
  [get('/', 'Transfer-Encoding: gzip, chunked\r\n'), 40001],
  [get('/', 'Transfer-Encoding: foo\r\n'), 40001]
]
const ownErrors: Record<string, Case[]> = {
  haproxy: [[get('/close'), 50291]],
  nginx: [
    [get('/close'), 50291],
    [get('/errors/40091'), 40401],
    [get('/plants?limit=1').replace('GET', 'TRACE'), 40501, 'GET, HEAD, POST'],
    [get('/plants/1').replace('GET', 'TRACE'), 40501, 'DELETE'],
    [get('/livez').replace('GET', 'TRACE'), 40501, 'GET, HEAD']
  ]
}

for (const [name, { id, send, hasOwnPage }] of Object.entries(proxies)) {
  await t.test(`${name} replaces the client's X-Forwarded-For with its address`, async (t) => {
    const { body } = await send(get('/', 'X-Forwarded-For: 1.2.3.4\r\n'))
    const { headers, httpVersion } = JSON.parse(body)
    t.equal(httpVersion, '1.1')
    t.equal(headers.host, 'plants.example.com')
    t.match(headers['x-forwarded-for'], /^\d+\.\d+\.\d+\.\d+$/)
    t.not(headers['x-forwarded-for'], '1.2.3.4')
  })

  await t.test(`${name}'s own errors have the service's JSON shape`, async (t) => {
    for (const [request, error, allow] of [...hasOwnPage ? [] : malformed, ...ownErrors[name] ?? []]) {
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

  await t.test(`a list that breaks off behind ${name} also breaks off for the client`, async (t) => {
    const { status, headers, body } = await send(get('/cut'))
    t.equal(status, 200)
    t.match(headers, /^transfer-encoding: chunked\r?$/im)
    t.notMatch(body, /\r\n0\r\n/, 'no last chunk')
  })

  await t.test(`${name} logs each request in JSON, without query or token`, async (t) => {
    await send(get('/plants/plant_abcDEF123?token=plant_abcDEF123'))
    const log = await until(() => run('logs', id), (log) => log.includes('/plant_'))
    const line = JSON.parse(/^\{.*\/plant_.*\}$/m.exec(log)?.[0] as string)
    t.match(line, { level: 'info', method: 'GET', path: '/plants/plant_', remoteAddress: /^\d/ })
    t.equal(Number(line.status), 200)
    t.notMatch(log, 'abcDEF')
  })
}

await t.test('nginx accepts bodies up to the service\'s limit', async (t) => {
  const configuration = await readFile(join(deploy, 'nginx.conf'), 'utf8')
  const limit = Number(/client_max_body_size (\d+);/.exec(configuration)?.[1])
  const post = (size: number) =>
    `POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: ${size}\r\n\r\n${'x'.repeat(size)}`
  t.equal((await proxies.nginx.send(post(limit))).status, 200)
  const { status, body } = await proxies.nginx.send(post(limit + 1))
  t.equal(status, 400)
  t.match(body, '"error":40006')
})

const noResponse = { status: 0, headers: '', body: '' }

await t.test('HAProxy limits the requests and connections of an address', async (t) => {
  const limits = ['--env=REQUESTS_PER_10_SECONDS=20', '--env=CONNECTIONS_PER_ADDRESS=5']
  const { id, send } = await startHaproxy(...limits)
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
    const ask = () => send(get('/')).catch(() => noResponse)
    const { headers, body } = await until(ask, ({ status }) => status === 503)
    t.equal(JSON.parse(body).error, 50391, name)
    t.match(headers, /^retry-after: 1\r?$/im)
  }
})
