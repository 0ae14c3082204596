// Tests bodies that arrive in many pieces: in chunks, or in segments of the network.
import { once } from 'node:events'
import { createServer, get, type IncomingMessage } from 'node:http'
import { connect, type AddressInfo } from 'node:net'
import { text } from 'node:stream/consumers'
import t from 'tap'
import { startApp } from '../../support/app.ts'
import { sql } from '../../support/database.ts'
import { exchange } from '../../support/raw.ts'

const { app, as, url, listen, observers: [metrics] } =
  await startApp(t, { METRICS_PORT: '0', BODY_LIMIT: '1048576' })
const address = await listen()
const { authorization } = await as('alice')

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
  const large = plant(2, 'n'.repeat(1_000_000))
  for (const body of [chunks(small, 1), chunks(large, 256)]) {
    const [response] = await exchange(address, [head() + body + end])
    t.equal(response?.status, 200)
  }
  t.same(await sql(url, 'select id, length(name) from plants order by id'),
    [{ id: '1', length: 80 }, { id: '2', length: 1_000_000 }])
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

t.test('pieces may also be segments of the network', async (t) => {
  const { hostname, port } = new URL(address)
  const accepted = once(app.server, 'connection')
  const client = connect({ host: hostname, port: Number(port), noDelay: true }).on('error', () => {})
  const closed = new Promise((resolve) => client.resume().on('close', resolve))
  client.write(head('POST /plants', 'Content-Length: 5000'))
  const [socket] = await accepted
  for (let sent = socket.bytesRead; !socket.destroyed; sent = socket.bytesRead) {
    client.write(' ')
    while (socket.bytesRead === sent && !socket.destroyed) await new Promise(setImmediate)
  }
  await closed
  t.ok(client.bytesWritten < 1000)
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
