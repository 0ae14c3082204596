// Tests that the service conforms to HTTP. docs/conformance.md lists the same cases.
import { once } from 'node:events'
import type { Socket } from 'node:net'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { exchange } from '../support/raw.ts'
import { isError } from '../support/error-response.ts'

const malformed = [40001, 'The request is not well-formed HTTP/1.1.'] as const
const badHost = [40003, 'An HTTP/1.1 request needs one valid Host header.'] as const

const { app, as, url, listen } = await startApp(t)
const address = await listen()
const { authorization } = await as('alice')
const get = (path: string, ...lines: string[]) =>
  [`GET ${path} HTTP/1.1`, 'Host: x', ...lines, '', ''].join('\r\n')
const post = (...lines: string[]) =>
  ['POST /plants HTTP/1.1', 'Host: x', `Authorization: ${authorization}`, ...lines, '', ''].join('\r\n')
const json = 'Content-Type: application/json'
const body = '{"id":1,"name":"n"}'

t.afterEach(() => sql(url, 'delete from plants'))

t.test('a response to input that the parser rejects has a date and is not cached', async (t) => {
  const inputs = [
    'garbage\r\n\r\n', `GET / HTTP/1.1\r\nX: ${'x'.repeat(20_000)}\r\n\r\n`,
    'CONNECT x:1 HTTP/1.1\r\nHost: x\r\n\r\n'
  ]
  for (const input of inputs) {
    const [response] = await exchange(address, [input])
    const age = Date.now() - Date.parse(response?.headers.date as string)
    t.ok(age >= 0 && age < 10_000, `${response?.headers.date}`)
    t.equal(response?.headers['cache-control'], 'no-store')
  }
})

t.test('the Host header must be a host with an optional port, or empty', async (t) => {
  const good = [
    'x', 'X.example', 'x:', 'x:80', '127.0.0.1:3000', '[::1]', '[::1]:3000', '[v1.x:y]', 'a,b', 'a_b', '%20',
    '!$&\'()*+,;=~', ''
  ]
  const bad = [
    'a b', 'a/b', 'u@h', 'a:b', 'a?b', 'a#b', 'a\\b', '%', '%2', '%zz', '[::1', '[::g]', '::1', '[::1]x',
    'a:80:81', 'a:-1', 'a, b', '<x>', '"x"', 'x\xE9'
  ]
  const bytes = (version: string, host: string) =>
    Buffer.from(`GET /livez HTTP/${version}\r\nHost: ${host}\r\nConnection: close\r\n\r\n`, 'latin1')
  for (const host of good) t.equal((await exchange(address, [bytes('1.1', host)]))[0]?.status, 200, host)
  for (const host of bad) {
    for (const version of ['1.1', '1.0']) {
      isError(t, (await exchange(address, [bytes(version, host)]))[0], ...badHost, `${version} ${host}`)
    }
  }
  for (const lines of [['a', 'a'], ['a', ''], ['', ''], ['a,b', 'c']]) {
    const [response] = await exchange(address, [
      `GET /livez HTTP/1.1\r\n${lines.map((line) => `Host: ${line}\r\n`).join('')}Connection: close\r\n\r\n`
    ])
    isError(t, response, ...badHost, lines.join(' and '))
  }
})

t.test('a transfer coding other than chunked is rejected, and the connection is closed', async (t) => {
  const chunks = '13\r\n{"id":1,"name":"n"}\r\n0\r\n\r\n'
  for (const coding of [
    'gzip, chunked', 'foo, chunked', 'identity, chunked', 'chunked;x=y', 'gzip\r\nTransfer-Encoding: chunked'
  ]) {
    const responses = await exchange(address,
      [post(json, `Transfer-Encoding: ${coding}`) + chunks + get('/livez')])
    t.equal(responses.length, 1, coding)
    isError(t, responses[0], ...malformed, coding)
  }
  for (const path of ['/plants', '/%zz']) {
    const old = post(json, 'Transfer-Encoding: chunked', 'Connection: keep-alive')
      .replace('1.1', '1.0').replace('/plants', path)
    const responses = await exchange(address, [old + chunks + get('/livez')])
    t.match(responses.map(({ status, headers: { connection } }) => [status, connection]), [[400, 'close']],
      path)
  }
  t.same(await sql(url, 'select from plants'), [])
})

t.test('a client that expects 100 Continue gets an error of its headers at once', async (t) => {
  const expect = 'Expect: 100-continue'
  const length = `Content-Length: ${body.length}`
  const rejected: Array<[request: string, number: number]> = [
    [post(json, length, expect).replace(/Authorization.*\r\n/, ''), 40101],
    [post(json, length, expect).replace(/Bearer .*/, 'Bearer x'), 40102],
    [post('Content-Type: text/plain', length, expect), 40004],
    [post(length, expect), 40004],
    [post('Content-Type: application/json; charset=latin1', length, expect), 40004],
    [post(json, 'Content-Encoding: gzip', length, expect), 40005],
    [post(json, 'Content-Length: 2000000', expect), 40006],
    [post(json, length, expect).replace('/plants', '/x'), 40401],
    [post(json, length, expect).replace('POST', 'PUT'), 40501]
  ]
  for (const [request, number] of rejected) {
    // After the rejection a client may omit the body. So the service does not know where the next request
    // begins, and closes the connection.
    for (const rest of ['', body + get('/livez')]) {
      const responses = await exchange(address, [request + rest])
      t.same(responses.map(({ status, headers: { connection }, body }) =>
        [status, connection, JSON.parse(body).error]),
      [[Math.floor(number / 100), 'close', number]], request)
    }
  }
  t.same(await sql(url, 'select from plants'), [])
})

t.test('the service sends 100 Continue when it is about to read the body', async (t) => {
  const accepted = once(app.server, 'connection') as Promise<[Socket]>
  const untilContinue = async () => {
    const [socket] = await accepted
    while (socket.bytesWritten === 0) await new Promise(setImmediate)
  }
  const responses = await exchange(address, [
    post(json, `Content-Length: ${body.length}`, 'Expect: 100-Continue'), untilContinue, body,
    get('/livez', 'Connection: close')
  ])
  t.same(responses.map(({ status, headers: { connection } }) => [status, connection]),
    [[100, undefined], [200, 'keep-alive'], [200, 'close']])
  const [old] = await exchange(address,
    [`${post(json, `Content-Length: ${body.length}`, 'Expect: 100-continue').replace('1.1', '1.0')}${body}`])
  t.equal(old?.status, 400, 'not to HTTP/1.0')
})

t.test('no response is cached, and JSON has no charset', async (t) => {
  const requests = [
    '/livez', '/readyz', '/x', '/%zz', '/plants', '/plants?limit=x', '/openapi.json'
  ].map((path) => get(path, `Authorization: ${authorization}`))
  const responses = await exchange(address, [
    ...requests.map((request) => [request, async () => {}] as const).flat(), get('/plants'),
    'DELETE /plants/1 HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n'
  ])
  t.equal(responses.length, 9)
  for (const { headers } of responses) {
    t.match(headers, { 'cache-control': 'no-store', 'content-type': /^application\/json$/ })
  }
  await sql(url, "insert into plants select 'alice', id, 'n' from generate_series(1, 1000) as id")
  const [long] = await exchange(address,
    [get('/plants', `Authorization: ${authorization}`, 'Connection: close')])
  t.match(long?.headers, { 'cache-control': 'no-store', 'content-type': /^application\/json$/ })
})

t.test('an id of more than 1,000 characters and a head of more than 16 KiB are rejected', async (t) => {
  const [id, head] = [
    await exchange(address,
      [get(`/plants/${'1'.repeat(1001)}`, 'Connection: close').replace('GET', 'DELETE')]),
    await exchange(address, [get(`/${'x'.repeat(16_384)}`)])
  ]
  isError(t, id[0], 41401, 'The URL is too long.')
  isError(t, head[0], 43101, 'The headers are too large.')
})
