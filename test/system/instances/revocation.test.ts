import { once } from 'node:events'
import { connect } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startApp } from '../../support/app.ts'
import { createDatabase, sql } from '../../support/database.ts'
import { unmeasured } from '../../support/program.ts'
import { parseResponses } from '../../support/raw.ts'

const { run, serve } = unmeasured

const DATABASE_URL = await createDatabase(t)
const token = (...args: string[]) => run(['token', ...args], { DATABASE_URL })
const create = async (...args: string[]) => (await token('create', ...args)).stdout.trim()

/** Returns the time, in ms, at which the user's only token was revoked or expires. */
async function timeOf (event: 'revoked' | 'expires', user: string): Promise<number> {
  const [row] = await sql(DATABASE_URL, `select ${event}_at as at from tokens where username = $1`, [user])
  return (row?.at as Date).getTime()
}

const instances = await Promise.all([
  serve(t, { DATABASE_URL }),
  serve(t, { DATABASE_URL }),
  serve(t, { DATABASE_URL, TOKEN_CACHE_TTL: '0' })
])
const addresses = instances.map(({ address }) => address)
const [,, uncached] = addresses as [string, string, string]

async function list (address: string, token: string): Promise<number> {
  const response = await fetch(`${address}/plants`, { headers: { authorization: `Bearer ${token}` } })
  await response.text()
  return response.status
}

/**
 * Sends requests until the service rejects the token, for 10 s at most. `accepted` is the time at which the
 * last accepted request was sent. `rejected` is the time at which the rejection arrived.
 */
async function useUp (address: string, token: string): Promise<{ accepted: number, rejected: number }> {
  const deadline = Date.now() + 10_000
  let accepted = 0
  let sent = Date.now()
  while (await list(address, token) === 200 && sent < deadline) {
    accepted = sent
    await setTimeout(100)
    sent = Date.now()
  }
  return { accepted, rejected: Date.now() }
}

t.jobs = 3

t.test('every instance rejects a revoked token within five seconds', { buffered: true }, async (t) => {
  const alice = await create('alice')
  const bob = await create('bob')
  for (const address of addresses) t.equal(await list(address, alice), 200)

  await token('revoke', '--user', 'alice')
  t.equal(await list(uncached, alice), 401, 'at once without a cache')
  const revoked = await timeOf('revoked', 'alice')
  for (const { rejected } of await Promise.all(addresses.map((address) => useUp(address, alice)))) {
    t.comment(`rejected after ${rejected - revoked} ms`)
    t.ok(rejected - revoked < 5000)
  }
  for (const address of addresses) t.equal(await list(address, bob), 200, 'another user\'s token stays valid')
})

t.test('a token is valid until it expires and no longer, cached or not', { buffered: true }, async (t) => {
  const carol = await create('carol', '--expires', '3s')
  const expires = await timeOf('expires', 'carol')
  for (const { accepted, rejected } of await Promise.all(addresses.map((address) => useUp(address, carol)))) {
    t.ok(accepted < expires, `accepted ${expires - accepted} ms before it expired`)
    t.ok(expires <= rejected, `rejected ${rejected - expires} ms after it expired`)
  }
})

/** Sends the head of a request and waits for status 100. Returns a function that sends the body. */
async function sendHead (t: Test, address: string, request: string, authorization: string, body: string) {
  const { hostname, port } = new URL(address)
  const socket = connect({ host: hostname, port: Number(port) })
  t.teardown(() => socket.destroy())
  socket.write([
    `${request} HTTP/1.1`,
    'Host: x',
    `Authorization: ${authorization}`,
    'Content-Type: application/json',
    `Content-Length: ${body.length}`,
    'Expect: 100-continue',
    'Connection: close',
    '\r\n'
  ].join('\r\n'))
  const [head] = await once(socket, 'data')
  t.match(String(head), /^HTTP\/1\.1 100 /)
  return async () => {
    socket.end(body)
    const [response] = parseResponses(await buffer(socket))
    return response
  }
}

t.test('a token revoked before the body arrives changes nothing', { buffered: true }, async (t) => {
  const { as, listen, log, tokens } = await startApp(t, { TOKEN_CACHE_TTL: '1500ms' })
  const address = await listen()
  await (await as('alice')).create({ id: 1, name: 'Monstera' })
  // Send the heads before the revocation, and the bodies after the service has noticed the revocation.
  const [creator, deleter, bob] = [await as('alice'), await as('alice'), await as('bob')]
  const ivy = '{"id":2,"name":"Ivy"}'
  const [finishCreate, finishDelete, finishBobs] = await Promise.all([
    sendHead(t, address, 'POST /plants', creator.authorization, ivy),
    sendHead(t, address, 'DELETE /plants/1', deleter.authorization, '{}'),
    sendHead(t, address, 'POST /plants', bob.authorization, ivy)
  ])

  await tokens.revoke({ user: 'alice' })
  for (const client of [creator, deleter]) {
    while ((await client.list()).statusCode === 200) await setTimeout(10)
  }
  const before = log.length
  for (const finish of [finishCreate, finishDelete]) {
    t.match(await finish(), {
      status: 401,
      headers: { 'www-authenticate': 'Bearer realm="plants", error="invalid_token"' },
      body: '{"error":40102,"message":"The bearer token is not valid."}'
    })
  }
  const rejections = log.slice(before).map((line) => JSON.parse(line)).filter(({ error }) => error === 40102)
  t.match(rejections, [{ user: 'alice', reason: 'revoked' }, { user: 'alice', reason: 'revoked' }])
  t.match(await finishBobs(), { status: 200 }, 'a valid token still creates')
  t.strictSame((await (await as('alice')).list()).json(), [{ name: 'Monstera' }])
})
