// One attacker: a process of its own, so that what it costs does not show in the times of others.
import { Agent, request, type OutgoingHttpHeaders } from 'node:http'
import { connect } from 'node:net'
import { createToken } from '../../../src/access/token-format.ts'

/** What came back so far: how many of each status, 0 for none. Nothing of who reads nothing. */
export type Counts = Record<number, number>

const [kind = '', address = '', token = '', connections] = process.argv.slice(2)
const { hostname, port } = new URL(address)
const agent = new Agent({ keepAlive: true, maxSockets: Infinity })
const counts: Counts = {}
const answered = Promise.withResolvers<void>()
let id = 1000

function send (method: string, headers: OutgoingHttpHeaders, body?: string): Promise<void> {
  return new Promise((resolve) => {
    const done = (status = 0) => {
      counts[status] = (counts[status] ?? 0) + 1
      answered.resolve()
      resolve()
    }
    request(`${address}/plants`, { agent, method, headers }, (response) => {
      response.resume().on('close', () => done(response.statusCode))
    }).on('error', () => done()).end(body)
  })
}

const authorization = `Bearer ${token}`
const name = 'n'.repeat(1_040_000)
const colons = `{"id"${':'.repeat(1_040_000)}}`

const post = (body: string, headers = { authorization }) =>
  send('POST', { ...headers, 'content-type': 'application/json', 'content-length': body.length }, body)

/** Asks for all it can, and reads each answer before it asks again. */
const floods: Record<string, () => Promise<void>> = {
  'large creates': () => post(JSON.stringify({ id: id++, name })),
  'large lists': () => send('GET', { authorization }),
  'bodies without a token': () => post(colons, { authorization: 'Bearer x' }),
  'bodies of colons': () => post(colons),
  'unknown tokens': () => send('GET', { authorization: `Bearer ${createToken()}` }),
  'malformed tokens': () => send('GET', { authorization: 'Bearer x' })
}

const get = (path: string) => `GET ${path} HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n\r\n`

/** Sends this once, and reads nothing. */
const hoards: Record<string, () => string> = {
  '17 times the script of the page, unread': () => get('/docs/scalar.js').repeat(17),
  'heads, as many as a piece has room for': () => get('/livez').repeat(1800),
  'bodies one byte short': () => {
    const body = `{"id":7,"name":"${'x'.repeat(1_000_000)}"`
    return `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${authorization}\r\n` +
      `Content-Type: application/json\r\nContent-Length: ${body.length + 1}\r\n\r\n${body}`
  },
  'three long lists each, unread': () => get('/plants').repeat(3)
}

// Told to stop it tells what came back, one answer at least.
process.on('message', async () => {
  await answered.promise
  process.send?.(counts, () => process.exit())
})
process.on('disconnect', () => process.exit())
process.send?.('begins')

function hoard (bytes: Buffer): void {
  answered.resolve()
  connect(Number(port), hostname).pause().on('error', () => {}).write(bytes)
}

async function flood (ask: () => Promise<void>): Promise<void> {
  for (;;) await ask()
}

// Once for all, who otherwise take the processor from those they attack.
const hoarded = Buffer.from(hoards[kind]?.() ?? '')
for (let begun = 0; begun < Number(connections); begun++) {
  if (hoards[kind] === undefined) flood(floods[kind] as (typeof floods)[string])
  else hoard(hoarded)
}
