import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { limitFailedAuth } from '../../src/access/rate-limits.ts'
import { createToken } from '../../src/access/tokens.ts'
import { batchEvents, tokenEvents } from '../../src/telemetry-events.ts'
import { startApp } from '../support/app.ts'
import { openSession } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { matchEach } from '../support/match.ts'

const addressLimited = [42902, 'Your address sent too many invalid tokens.'] as const
const invalid = [40102, 'The bearer token is not valid.'] as const

t.test('USER_RATE and USER_BURST limit the requests of a user', async (t) => {
  const { app, as, url } = await startApp(t, { USER_RATE: '6/m', USER_BURST: '4' })
  const [alice, phone, bob] = [await as('alice'), await as('alice'), await as('bob')]
  const governed = [
    await alice.create({ id: 1, name: 'Monstera' }), await alice.delete(2), await phone.list(),
    await alice.list('?limit=x'), await alice.list(), await phone.create('{')
  ]
  t.same(governed.map(({ statusCode }) => statusCode), [200, 404, 200, 400, 429, 429])
  // On a slow machine, some of the ten seconds until the next request have passed.
  const soon = '([1-9]|10)$'
  matchEach(t, governed.map(({ headers }) => headers.ratelimit),
    [3, 2, 1, 0, 0, 0].map((left) => new RegExp(`^"user";r=${left};t=${soon}`)))
  for (const { headers } of governed) t.equal(headers['ratelimit-policy'], '"user";q=4;w=40')
  for (const response of governed.slice(4)) {
    isError(t, response, 42901, 'You have sent too many requests.')
    t.match(response.headers,
      { 'retry-after': new RegExp(`^${soon}`), 'cache-control': 'no-store', 'x-request-id': String })
  }
  t.match(await bob.list(), { statusCode: 200, headers: { ratelimit: new RegExp(`^"user";r=3;t=${soon}`) } })
  for (const path of ['/livez', '/plants', '/nowhere']) {
    const { headers } = await app.inject({ url: path, headers: { authorization: 'Bearer plant_1' } })
    t.notMatch(Object.keys(headers).join(), 'ratelimit', path)
  }

  for (const [USER_RATE, policy] of [
    ['100/s', '"user";q=100;w=1'], ['90/m', '"user";q=2;w=2'], ['1/m', '"user";q=1;w=60']
  ] as const) {
    const { as } = await startApp(t, { DATABASE_URL: url, USER_RATE })
    const { headers } = await (await as('alice')).list()
    t.equal(headers['ratelimit-policy'], policy, 'the default burst is what the rate allows in one second')
  }
})

/** Starts an app that trusts this process as a proxy, so that tests can choose the address of a client. */
async function startBehindProxy (t: Test, environment: Record<string, string>) {
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
  batchEvents.subscribe(({ name }) => { if (name === 'token') lookUps++ })
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

t.test('of an address, only as many new tokens are checked at a time as it may still send', async (t) => {
  const { as, list, fail, url } = await startBehindProxy(t, { FAILED_AUTH_RATE: '20/m' })
  const nat = '192.0.2.1'
  const tokens = await Promise.all(Array.from({ length: 60 }, async () => (await as('alice')).authorization))
  const started: unknown[] = []
  tokenEvents.subscribe((event) => { started.push(event) })
  /** Sends all requests while look-ups wait for a lock, and returns how many got each status. */
  async function sendTogether (requests: Array<() => ReturnType<typeof list>>) {
    started.length = 0
    const operator = await openSession(t, url, 'begin; lock table tokens')
    const sent = requests.map((request) => request())
    while (started.length < 20) await nextTick()
    for (let tick = 0; tick < 100; tick++) await nextTick()
    t.equal(started.length, 20)
    await operator.query('commit')
    const counts: Record<number, number> = {}
    for (const { statusCode } of await Promise.all(sent)) counts[statusCode] = (counts[statusCode] ?? 0) + 1
    return counts
  }
  const good = tokens.map((token) => () => list(token, nat))
  t.strictSame(await sendTogether(good), { 200: 60 }, 'valid tokens wait for each other and do not count')
  // A slow machine would give the address time to send more.
  const now = performance.now()
  t.intercept(performance, 'now', { value: () => now })
  const bad = Array.from({ length: 200 }, () => () => fail(nat))
  t.strictSame(await sendTogether(bad), { 401: 20, 429: 180 })
  t.equal((await list(tokens[0] as string, nat)).statusCode, 200, 'a cached token')
})

t.test('requests that wait for others with the same valid token need no check of their own', async (t) => {
  const { as, list, fail } = await startBehindProxy(t, { FAILED_AUTH_RATE: '2/m' })
  await fail('192.0.2.1')
  const { authorization } = await as('alice')
  const sent = Array.from({ length: 50 }, () => list(authorization, '192.0.2.1'))
  t.strictSame([...new Set((await Promise.all(sent)).map(({ statusCode }) => statusCode))], [200])
  t.equal((await fail('192.0.2.1')).statusCode, 401)
  t.equal((await fail('192.0.2.1')).statusCode, 429)
})

t.test('a check of a new token that ends lets another start, and known tokens never wait', async (t) => {
  const limit = limitFailedAuth({ count: 2, seconds: 60 })
  const started: string[] = []
  const ends = new Map<string, () => void>()
  const send = (name: string, isNew = true) => limit('192.0.2.1', () => isNew, () => {
    started.push(name)
    return new Promise<void>((resolve) => ends.set(name, resolve))
  })
  const settle = async () => { for (let tick = 0; tick < 5; tick++) await nextTick() }
  for (let round = 0; round < 2; round++) {
    started.length = 0
    const first = [send('a'), send('b'), send('c'), send('known', false)]
    await settle()
    t.strictSame(started, ['a', 'b', 'known'])
    ends.get('known')?.()
    ends.get('a')?.()
    await settle()
    const late = send('d')
    await settle()
    t.strictSame(started, ['a', 'b', 'known', 'c'])
    ends.get('b')?.()
    await settle()
    t.strictSame(started, ['a', 'b', 'known', 'c', 'd'])
    for (const name of ['c', 'd']) ends.get(name)?.()
    await Promise.all([...first, late])
  }
})

t.test('a new token waits at most 5 s for the checks of others', async (t) => {
  const limit = limitFailedAuth({ count: 1, seconds: 60 })
  const real = performance.now.bind(performance)
  let shiftMs = 0
  t.intercept(performance, 'now', { value: () => real() + shiftMs })
  const first = Promise.withResolvers<string>()
  const check = (result: Promise<string>) => limit('192.0.2.1', () => true, () => result)
  const sent = [first.promise, Promise.resolve('second'), Promise.resolve('third')].map(check)
  shiftMs = 5001
  first.resolve('first')
  t.equal(await sent[0], 'first')
  for (const late of sent.slice(1)) await t.rejects(late, { name: 'OVERLOADED' })
  t.equal(await check(Promise.resolve('fourth')), 'fourth')
})

t.test('an unavailable database counts as no failure of a client', async (t) => {
  const { fail } = await startBehindProxy(t,
    { FAILED_AUTH_RATE: '1/m', DATABASE_URL: 'postgres://postgres:secret@127.0.0.1:1/plants' })
  for (let sent = 0; sent < 3; sent++) t.equal((await fail('192.0.2.1')).statusCode, 503)
})

t.test('IPv6 addresses count by /64, others one by one, and an invalid address as its proxy', async (t) => {
  const { as, list, fail } = await startBehindProxy(t, { FAILED_AUTH_RATE: '1/m', TOKEN_CACHE_TTL: '0' })
  // The addresses of each group share a limit.
  const groups = [
    ['2001:db8::1', '2001:0DB8:0:0:ffff::2', '2001:db8::', '2001:db8:0:0:1:2:192.0.2.1'],
    ['2001:db8:0:1::1'], ['2001:db8:1:0::1'], ['::1:2', '::'], ['fe80::1%eth0', 'fe80::2%eth1'],
    ['1:2:3:4:5:6:7:8', '1:2:3:4::'], ['::ffff:192.0.2.1'], ['::ffff:192.0.2.2', '192.0.2.2'],
    ['192.0.2.3'], ['192.0.2.4'], ['junk', '192.0.2.3:4711', '[2001:db8::1]:99']
  ]
  for (const addresses of groups) {
    for (const [index, address] of addresses.entries()) {
      t.equal((await fail(address)).statusCode, index === 0 ? 401 : 429, address)
    }
  }
  const { authorization } = await as('alice')
  t.equal((await list(authorization, '192.0.2.5')).statusCode, 200)
  for (const status of [401, 429]) t.equal((await fail('192.0.2.5')).statusCode, status)
  t.equal((await list(authorization, '192.0.2.5')).statusCode, 200, 'an expired entry of the token cache')
})
