import { setTimeout } from 'node:timers/promises'
import t from 'tap'
import { createDatabase, sql } from '../support/database.ts'
import { unmeasured } from '../support/program.ts'

const { run, serve } = unmeasured

const DATABASE_URL = await createDatabase(t)
const token = (...args: string[]) => run(['token', ...args], { DATABASE_URL })
const create = async (...args: string[]) => (await token('create', ...args)).stdout.trim()

/** What the database says of the token of a user who has one. */
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
  const answer = await fetch(`${address}/plants`, { headers: { authorization: `Bearer ${token}` } })
  await answer.text()
  return answer.status
}

/** Goes on using a token until it is refused (or for far too long), and tells when the last use and the refused one were. */
async function useUp (address: string, token: string): Promise<{ accepted: number, refused: number }> {
  const giveUp = Date.now() + 10_000
  let accepted = 0
  let sent = Date.now()
  while (await list(address, token) === 200 && sent < giveUp) {
    accepted = sent
    await setTimeout(100)
    sent = Date.now()
  }
  return { accepted, refused: Date.now() }
}

t.jobs = 2

t.test('a revoked token is refused by every running instance within five seconds', { buffered: true }, async (t) => {
  const alice = await create('alice')
  const bob = await create('bob')
  for (const address of addresses) t.equal(await list(address, alice), 200)

  await token('revoke', '--user', 'alice')
  t.equal(await list(uncached, alice), 401, 'without a cache at once')
  const revoked = await timeOf('revoked', 'alice')
  for (const { refused } of await Promise.all(addresses.map((address) => useUp(address, alice)))) {
    t.comment(`refused after ${refused - revoked} ms`)
    t.ok(refused - revoked < 5000)
  }
  for (const address of addresses) t.equal(await list(address, bob), 200, 'another user\'s goes on')
})

t.test('an expiring token is good until the moment it expires and never after, cached or not', { buffered: true }, async (t) => {
  const carol = await create('carol', '--expires', '3s')
  const expires = await timeOf('expires', 'carol')
  for (const { accepted, refused } of await Promise.all(addresses.map((address) => useUp(address, carol)))) {
    t.ok(accepted < expires && expires <= refused, `${expires - accepted} ms before it was good, ${refused - expires} ms after it was not`)
  }
})
