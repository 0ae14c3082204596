import { setImmediate as nextTick, setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createAuthenticate } from '../../src/access/token-cache.ts'
import { createToken } from '../../src/access/token-format.ts'
import { batchEvents } from '../../src/events.ts'
import { startApp } from '../support/app.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { createDatabase, sql, waitingForLocks } from '../support/database.ts'

/** Counts the tokens that the service looks up from now on. */
function countLookups (t: Test): () => number {
  let lookups = 0
  const count =
    ({ name, items }: { name: string, items: number }) => { if (name === 'token') lookups += items }
  batchEvents.subscribe(count)
  t.teardown(() => batchEvents.unsubscribe(count))
  return () => lookups
}

async function lockTokens (t: Test, url: string) {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table tokens')
  return () => client.query('commit')
}

/** Waits until a database connection waits for a lock, then terminates that connection. */
async function endWaiting (t: Test, url: string): Promise<void> {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await client.query(end)).rowCount === 0);
}

t.test('simultaneous requests look their token up once, and later requests do not', async (t) => {
  const { as } = await startApp(t)
  const alice = await as('alice')
  const lookups = countLookups(t)
  for (let round = 0; round < 2; round++) {
    const responses = await Promise.all(Array.from({ length: 50 }, () => alice.list()))
    t.ok(responses.every(({ statusCode }) => statusCode === 200))
  }
  t.equal(lookups(), 1)
})

t.test('with TOKEN_CACHE_TTL=0 no request is served from memory', async (t) => {
  const { as } = await startApp(t, { TOKEN_CACHE_TTL: '0' })
  const alice = await as('alice')
  const lookups = countLookups(t)
  for (let sent = 0; sent < 5; sent++) t.equal((await alice.list()).statusCode, 200)
  t.equal(lookups(), 5)
})

t.test('a flood of unknown tokens does not evict a known token', async (t) => {
  const { tokens } = await startApp(t)
  const lookups = countLookups(t)
  const authenticate = createAuthenticate(tokens, 60_000)
  const known = await tokens.create({ user: 'alice', readOnly: false })
  await authenticate(known)
  const unknown = 12_000
  for (let sent = 0; sent < unknown; sent += 500) {
    const results = await Promise.allSettled(Array.from({ length: 500 }, () => authenticate(createToken())))
    t.ok(results.every(({ status }) => status === 'rejected'))
  }
  t.match(await authenticate(known), { user: 'alice' })
  t.equal(lookups(), unknown + 1)
})

t.test('a mistyped token is rejected without a look-up', async (t) => {
  const { app, url } = await startApp(t)
  const unlock = await lockTokens(t, url)
  const token = createToken()
  const list = (token: string) =>
    app.inject({ url: '/plants', headers: { authorization: `Bearer ${token}` } })
  const unknown = list(token)
  let isPending = true
  unknown.then(() => { isPending = false })
  t.equal((await list(token.slice(0, -1))).statusCode, 401)
  t.ok(isPending, 'the look-up of a well-formed token is still pending')
  await unlock()
  t.equal((await unknown).statusCode, 401)
})

const unavailable = { error: 50301, message: 'The database cannot be reached.' }

t.test('the TTL counts from the start of a look-up', async (t) => {
  const url = await createDatabase(t)
  const proxy = await openProxy(t, url)
  const { database, tokens } = await startApp(t, { DATABASE_URL: proxy.url })
  const token = await tokens.create({ user: 'alice', readOnly: false })
  const authenticate = createAuthenticate(tokens, 300)
  await database.readHedged({ name: 'one', text: 'select 1' })
  // The proxy delays data by 0.8 s in each direction.
  proxy.slow(800)
  const first = authenticate(token)
  await delay(1000)
  await sql(url, 'update tokens set revoked_at = now()')
  const joined = t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause: 'revoked' },
    'during an old look-up')
  t.match(await first, { user: 'alice' })
  proxy.slow(0)
  await t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause: 'revoked' }, 'after an old look-up')
  await joined
})

t.test('unknown tokens neither delay nor shed the look-up of a known token', async (t) => {
  const { database, tokens, url } = await startApp(t, { MAX_QUEUED: '150' })
  const authenticate = createAuthenticate(tokens, 1)
  const token = await tokens.create({ user: 'alice', readOnly: false })
  await authenticate(token)
  const unlock = await lockTokens(t, url)
  const settled: string[] = []
  let shed = 0
  const sendUnknown = () => authenticate(createToken()).catch(({ name }) => {
    if (name === 'OVERLOADED') shed++
    else settled.push(name)
  })
  // After this loop, four statements with 64 look-ups each are in flight. The other look-ups are queued.
  const unknown = []
  for (const length of [128, 128, 150]) {
    unknown.push(...Array.from({ length }, sendUnknown))
    await nextTick()
  }
  // Wait until `token` has expired from the cache.
  await delay(5)
  const known = authenticate(token).then(({ user }) => { settled.push(user) })
  await unlock()
  await Promise.all([...unknown, known])
  t.ok(settled.indexOf('alice') < 256 + 64, `settled as number ${settled.indexOf('alice')}`)
  t.equal(shed, 1)
  await database.close()
})

t.test('a token in use is refreshed before it expires, and no request waits for that', async (t) => {
  const { tokens, url } = await startApp(t)
  const lookups: Array<Promise<unknown>> = []
  const observed = {
    ...tokens,
    find: (...args: Parameters<typeof tokens.find>) => {
      const lookup = tokens.find(...args)
      lookups.push(lookup)
      return lookup
    }
  }
  const authenticate = createAuthenticate(observed, 3000)
  const token = await tokens.create({ user: 'alice', readOnly: false })
  await authenticate(token)
  const unlock = await lockTokens(t, url)
  while (lookups.length === 1) {
    t.match(await authenticate(token), { user: 'alice' })
    await delay(10)
  }
  await endWaiting(t, url)
  await t.rejects(lookups[1] as Promise<unknown>, { name: 'DATABASE_UNAVAILABLE' })
  t.match(await authenticate(token), { user: 'alice' }, 'the failed refresh leaves the entry')
  t.equal(lookups.length, 2)
  await unlock()
})

t.test('refreshes of tokens in use at the same time share statements', async (t) => {
  const { tokens } = await startApp(t)
  const authenticate = createAuthenticate(tokens, 1500)
  const texts = await Promise.all(Array.from({ length: 20 }, () =>
    tokens.create({ user: 'alice', readOnly: false })))
  const statements: number[] = []
  const count = ({ items }: { items: number }) => { statements.push(items) }
  batchEvents.subscribe(count)
  t.teardown(() => batchEvents.unsubscribe(count))
  const total = () => statements.reduce((sum, items) => sum + items, 0)
  while (total() < 40) {
    for (const text of texts) {
      await authenticate(text)
      await delay(2)
    }
  }
  t.equal(total(), 40)
  t.ok(statements.length < 30, `20 look-ups and ${statements.length - 20} statements for 20 refreshes`)
})

t.test('a second revocation keeps the time of the first', async (t) => {
  const { tokens } = await startApp(t)
  await tokens.create({ user: 'alice', readOnly: false })
  t.equal(await tokens.revoke({ user: 'alice' }), 1)
  const revoked = await tokens.list('alice')
  t.equal(await tokens.revoke({ user: 'alice' }), 0)
  t.strictSame(await tokens.list('alice'), revoked)
})

t.test('an unreachable database is never reported as an invalid token', async (t) => {
  const { app, log } = await startApp(t, { DATABASE_URL: 'postgres://postgres:secret@127.0.0.1:1/plants' })
  const response = await app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } })
  t.equal(response.statusCode, 503)
  t.strictSame(response.json(), unavailable)
  t.match(response.headers, { 'retry-after': '1' })
  t.notHas(response.headers, 'www-authenticate')
  t.match(log.map((line) => JSON.parse(line)),
    [{ level: 'error', reqId: String, err: { message: /ECONNREFUSED/ } }])
})

t.test('a failed look-up fails every request that shares it, and is not cached', async (t) => {
  const { url, as } = await startApp(t)
  const alice = await as('alice')
  const unlock = await lockTokens(t, url)
  const pending = Promise.all(Array.from({ length: 10 }, () => alice.list()))
  await endWaiting(t, url)
  for (const response of await pending) {
    t.equal(response.statusCode, 503)
    t.strictSame(response.json(), unavailable)
  }
  await unlock()
  t.equal((await alice.list()).statusCode, 200)
})
