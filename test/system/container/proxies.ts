// Starts the proxies of deploy/ in front of a test server, which fails on the paths /close, /end and /cut.
import { execFile } from 'node:child_process'
import { once } from 'node:events'
import http, { type IncomingMessage } from 'node:http'
import https from 'node:https'
import { join } from 'node:path'
import { connect as connectTls } from 'node:tls'
import { connect } from 'node:net'
import { buffer, text } from 'node:stream/consumers'
import { promisify } from 'node:util'
import t from 'tap'
import { base, findImage, openNetwork, run, until } from './support.ts'

const deploy = join(import.meta.dirname, '../../../deploy')
const { start } = await openNetwork(t)
const upstream = await start('--network-alias=plant-store-1', '--publish=127.0.0.1::443', base,
  'sh', '-c', 'node -e "$0"; exec sleep infinity', `require('node:http').createServer((request, response) => {
    const { url, headers, httpVersion, socket } = request
    if (url === '/close') return socket.destroy()
    if (url === '/end') process.exit()
    response.setHeader('content-type', url === '/docs' ? 'text/html' : 'application/json')
    if (url === '/cut') return response.write('[', () => setTimeout(() => socket.destroy(), 100))
    const list = JSON.stringify(Array(200).fill({ name: 'Monstera', tag: 'tropical' }))
    if (url === '/list') return response.setHeader('content-length', list.length).end(list)
    if (url === '/chunked') return response.write(list, () => response.end(list))
    if (url === '/docs') {
      if (headers['accept-encoding'] !== 'gzip') return response.end(list)
      return response.setHeader('content-encoding', 'gzip').end(require('node:zlib').gzipSync(list))
    }
    request.resume().on('end', () => response.end(JSON.stringify({ headers, httpVersion })))
  }).listen(3000)`)

function clientOf (port: number, isSecure = false) {
  const server = { port, host: '127.0.0.1', rejectUnauthorized: false }
  return {
    async send (request: string) {
      const socket = isSecure ? connectTls(server) : connect(server)
      socket.write(request)
      const [headers = '', body = ''] = (await text(socket)).split('\r\n\r\n')
      return { status: Number(headers.split(' ')[1]), headers, body }
    },

    /** Returns a response without decoding its body. */
    async load (path: string, encoding: string) {
      const options = { ...server, path, agent: false, headers: { 'accept-encoding': encoding } }
      const request = isSecure ? https.get(options) : http.get(options)
      const [response] = await once(request, 'response') as [IncomingMessage]
      return { headers: response.headers, body: await buffer(response) }
    }
  }
}

export const get = (path: string, headers = '') =>
  `GET ${path} HTTP/1.1\r\nHost: plants.example.com\r\nConnection: close\r\n${headers}\r\n`

export const portOf = async (container: string, port: number) =>
  Number((await run('port', container, `${port}/tcp`)).split(':')[1])

export async function startHaproxy (...args: string[]) {
  const image = await findImage('haproxy:3.4')
  const id = await start('--publish=127.0.0.1::3000', '--read-only', ...args,
    `--volume=${deploy}/haproxy.cfg:/usr/local/etc/haproxy/haproxy.cfg:ro`,
    `--volume=${deploy}/errors:/usr/local/etc/haproxy/errors:ro`, image)
  const { send, load } = clientOf(await portOf(id, 3000))
  await until(() => send(get('/livez')).catch(() => undefined), (response) => response?.status === 200)
  const version = await run('exec', id, 'haproxy', '-v')
  return {
    id,
    send,
    load,
    hasOwnPage: /version (2|3\.[0-2])\./.test(version),
    compressesAll: /version (2|3\.[01])\./.test(version)
  }
}

export const proxies = {
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
  const { send, load } = clientOf(await portOf(upstream, 443), true)
  await until(() => send(get('/')).catch(() => undefined), (response) => response?.status === 200)
  return { id, send, load, hasOwnPage: false, compressesAll: false }
}
