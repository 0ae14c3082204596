// Tests the proxies of deploy/.
import { connect } from 'node:net'
import { gunzipSync } from 'node:zlib'
import t from 'tap'
import { get, portOf, proxies, startHaproxy } from './proxies.ts'
import { run, until } from './support.ts'

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

for (const [name, { id, send, load, hasOwnPage, compressesAll }] of Object.entries(proxies)) {
  await t.test(`${name} compresses JSON above 1 KiB once, and the decoded bytes are equal`, async (t) => {
    for (const path of ['/list', '/chunked', '/docs']) {
      const [plain, packed] = [await load(path, 'identity'), await load(path, 'gzip')]
      t.equal(plain.headers['content-encoding'], undefined, path)
      t.equal(packed.headers['content-encoding'], 'gzip', path)
      if (path !== '/docs') t.match(packed.headers.vary, /accept-encoding/i, path)
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
    await t.rejects(load('/cut', 'gzip'), { code: 'ECONNRESET' })
  })

  await t.test(`${name} logs each request in JSON, without query or token`, async (t) => {
    const jwt = 'eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJhbGljZSJ9.abc-DEF_123'
    for (const [token, start] of [['plant_abcDEF123', 'plant_'], [jwt, 'eyJ']] as const) {
      await send(get(`/plants/${token}?token=${token}`))
      const isLine = (line: string) => line.includes(`/${start}`)
      const log = await until(() => run('logs', id), isLine)
      const line = JSON.parse(/\{.*/.exec(log.split('\n').find(isLine) as string)?.[0] as string)
      t.match(line, { level: 'info', method: 'GET', remoteAddress: /^\d/ })
      t.equal(line.path, `/plants/${start}`)
      t.equal(Number(line.status), 200)
      t.notMatch(log, 'DEF')
    }
  })
}

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
    const ask = () => send(get('/')).catch(() => ({ status: 0, headers: '', body: '' }))
    const { headers, body } = await until(ask, ({ status }) => status === 503)
    t.equal(JSON.parse(body).error, 50391, name)
    t.match(headers, /^retry-after: 1\r?$/im)
  }
})
