import Fastify from 'fastify'
import t from 'tap'
import { limitUsers } from '../../src/access/rate-limits.ts'
import { createToken } from '../../src/access/token-format.ts'
import { batchEvents } from '../../src/events.ts'
import type { Rate } from '../../src/scheduling/token-buckets.ts'
import { startApp } from '../support/app.ts'
import { isError } from '../support/error-response.ts'

const rateLimited = [42901, 'You have sent too many requests.'] as const
const addressLimited = [42902, 'Your address sent too many invalid tokens.'] as const
const invalid = [40102, 'The bearer token is not valid.'] as const

t.test('USER_RATE and USER_BURST limit the requests of a user', async (t) => {
  const { app, as } = await startApp(t, { USER_RATE: '6/m', USER_BURST: '4' })
  const [alice, phone, bob] = [await as('alice'), await as('alice'), await as('bob')]
  const governed = [
    await alice.create({ id: 1, name: 'Monstera' }), await alice.delete(2), await phone.list(),
    await alice.list('?limit=x'), await alice.list(), await phone.create('{')
  ]
  t.same(governed.map(({ statusCode }) => statusCode), [200, 404, 200, 400, 429, 429])
  t.same(governed.map(({ headers }) => headers.ratelimit),
    [3, 2, 1, 0, 0, 0].map((left) => `"user";r=${left};t=10`))
  for (const { headers } of governed) t.equal(headers['ratelimit-policy'], '"user";q=4;w=40')
  for (const response of governed.slice(4)) {
    isError(t, response, ...rateLimited)
    t.match(response.headers, { 'retry-after': '10', 'cache-control': 'no-store', 'x-request-id': String })
  }
  t.match(await bob.list(), { statusCode: 200, headers: { ratelimit: '"user";r=3;t=10' } })
  const ungoverned = [
    await app.inject('/livez'), await app.inject('/plants'), await app.inject('/nowhere'),
    await app.inject({ url: '/plants', headers: { authorization: 'Bearer plant_1' } })
  ]
  t.same(ungoverned.map(({ statusCode }) => statusCode), [200, 401, 404, 401])
  for (const { headers } of ungoverned) t.notMatch(Object.keys(headers).join(), 'ratelimit')
})

t.test('the default burst is what the rate allows in one second', async (t) => {
  const rates: Array<[Rate, policy: string]> = [
    [{ count: 100, seconds: 1 }, '"user";q=100;w=1'], [{ count: 90, seconds: 60 }, '"user";q=2;w=2'],
    [{ count: 1, seconds: 60 }, '"user";q=1;w=60']
  ]
  for (const [rate, policy] of rates) {
    const app = Fastify()
    app.addHook('onRequest', async (request) => { Object.assign(request, { identity: { user: 'alice' } }) })
    limitUsers(app, rate)
    app.get('/', async () => '')
    t.equal((await app.inject('/')).headers['ratelimit-policy'], policy)
  }
})

/** Starts an app that trusts this process as a proxy, so that tests can choose the address of a client. */
async function startBehindProxy (t: Parameters<typeof startApp>[0], environment: Record<string, string>) {
  const started = await startApp(t, { TRUSTED_PROXIES: 'loopback', ...environment })
  const list = (authorization: string, address: string) =>
    started.app.inject({ url: '/plants', headers: { authorization, 'x-forwarded-for': address } })
  const fail = (address: string) => list(`Bearer ${createToken()}`, address)
  return { ...started, list, fail }
}

t.test('FAILED_AUTH_RATE stops look-ups for an address, and cached tokens work', async (t) => {
  const { as, list, fail, tokens } = await startBehindProxy(t, { FAILED_AUTH_RATE: '5/m' })
  const [alice, bob] = [(await as('alice')).authorization, (await as('bob')).authorization]
  const revoked = (await as('carol')).authorization
  const expired = (await as('carol', { expires: new Date(Date.now() - 1) })).authorization
  await tokens.revoke({ user: 'carol' })
  const nat = '192.0.2.1'
  t.equal((await list(alice, nat)).statusCode, 200)
  for (const token of ['Bearer plant_1', revoked, expired]) isError(t, await list(token, nat), ...invalid)
  for (const missing of ['', 'Basic YTpi']) t.equal((await list(missing, nat)).json().error, 40101)
  for (let failed = 0; failed < 2; failed++) isError(t, await fail(nat), ...invalid)

  let lookUps = 0
  const count = ({ name }: { name: string }) => { if (name === 'token') lookUps++ }
  batchEvents.subscribe(count)
  t.teardown(() => batchEvents.unsubscribe(count))
  const refused = await fail(nat)
  isError(t, refused, ...addressLimited)
  t.match(refused.headers, { 'retry-after': /^([1-9]|1[0-2])$/ })
  t.notHas(refused.headers, 'www-authenticate')
  isError(t, await list(bob, nat), ...addressLimited, 'a valid token that is not cached')
  t.equal((await list(alice, nat)).statusCode, 200, 'a cached token')
  isError(t, await list(revoked, nat), ...invalid, 'a cached token that is revoked')
  isError(t, await list('Bearer plant_2', nat), ...invalid, 'a malformed token needs no look-up')
  t.equal(lookUps, 0)
  t.equal((await list(bob, '192.0.2.2')).statusCode, 200, 'another address')
})

t.test('an unavailable database counts as no failure of a client', async (t) => {
  const { fail } = await startBehindProxy(t,
    { FAILED_AUTH_RATE: '1/m', DATABASE_URL: 'postgres://postgres:secret@127.0.0.1:1/plants' })
  for (let sent = 0; sent < 3; sent++) t.equal((await fail('192.0.2.1')).statusCode, 503)
})

t.test('IPv6 addresses count by /64, others one by one, and an invalid address as its proxy', async (t) => {
  const { as, list, fail } = await startBehindProxy(t, { FAILED_AUTH_RATE: '1/m', TOKEN_CACHE_TTL: '0' })
  const statuses: Record<string, number> = {
    '2001:db8::1': 401,
    '2001:0DB8:0:0:ffff::2': 429,
    '2001:db8::': 429,
    '2001:db8:0:0:1:2:192.0.2.1': 429,
    '2001:db8:0:1::1': 401,
    '2001:db8:1:0::1': 401,
    '::1:2': 401,
    '::': 429,
    'fe80::1%eth0': 401,
    'fe80::2%eth1': 429,
    '1:2:3:4:5:6:7:8': 401,
    '1:2:3:4::': 429,
    '::ffff:192.0.2.1': 401,
    '::ffff:192.0.2.2': 401,
    '::ffff:c000:202': 429,
    '192.0.2.3': 401,
    '192.0.2.4': 401,
    junk: 401,
    '192.0.2.3:4711': 429,
    '[2001:db8::1]:99': 429
  }
  for (const [address, status] of Object.entries(statuses)) {
    t.equal((await fail(address)).statusCode, status, address)
  }
  const { authorization } = await as('alice')
  t.equal((await list(authorization, '192.0.2.5')).statusCode, 200)
  for (const status of [401, 429]) t.equal((await fail('192.0.2.5')).statusCode, status)
  t.equal((await list(authorization, '192.0.2.5')).statusCode, 200, 'an expired entry of the token cache')
})
