import { setImmediate as nextTurn, setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createAuthenticate } from '../../src/access/token-cache.ts'
import { createToken } from '../../src/access/token-format.ts'
import { batchEvents } from '../../src/events.ts'
import { startApp } from '../support/app.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { createDatabase, sql, waitingForLocks } from '../support/database.ts'

/** Counts how often the database is asked for a token from here on, several by one statement or not. */
function countLookups (t: Test): () => number {
  let lookups = 0
  const count = ({ name, items }: { name: string, items: number }) => { if (name === 'token') lookups += items }
  batchEvents.subscribe(count)
  t.teardown(() => batchEvents.unsubscribe(count))
  return () => lookups
}

/** Holds up everything that needs the tokens until it is told to let go. */
async function lockTokens (t: Test, url: string) {
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table tokens')
  return () => client.query('commit')
}

t.test('simultaneous requests with a token look it up once, and later ones not at all', async (t) => {
  const { as } = await startApp(t)
  const alice = await as('alice')
  const lookups = countLookups(t)
  for (let round = 0; round < 2; round++) {
    const answers = await Promise.all(Array.from({ length: 50 }, () => alice.list()))
    t.ok(answers.every(({ statusCode }) => statusCode === 200))
  }
  t.equal(lookups(), 1)
})

t.test('with TOKEN_CACHE_TTL=0 every request looks its token up', async (t) => {
  const { as } = await startApp(t, { TOKEN_CACHE_TTL: '0' })
  const alice = await as('alice')
  const lookups = countLookups(t)
  await Promise.all(Array.from({ length: 50 }, () => alice.list()))
  t.equal(lookups(), 50)
})

t.test('a flood of unknown tokens does not push out a known one', async (t) => {
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

t.test('a mistyped token is refused without a look-up', async (t) => {
  const { app, url } = await startApp(t)
  const unlock = await lockTokens(t, url)
  const token = createToken()
  const list = (token: string) => app.inject({ url: '/plants', headers: { authorization: `Bearer ${token}` } })
  const unknown = list(token)
  let answered = false
  unknown.then(() => { answered = true })
  t.equal((await list(token.slice(0, -1))).statusCode, 401)
  t.notOk(answered, 'while one that could be right waits for it')
  await unlock()
  t.equal((await unknown).statusCode, 401)
})

const unavailable = { error: 50301, message: 'The database cannot be reached.' }

t.test('what the database says of a token is good for as long as it is remembered from when it was asked', async (t) => {
  const url = await createDatabase(t)
  const proxy = await openProxy(t, url)
  const { database, tokens } = await startApp(t, { DATABASE_URL: proxy.url })
  const token = await tokens.create({ user: 'alice', readOnly: false })
  const authenticate = createAuthenticate(tokens, 300)
  await database.readHedged({ name: 'one', text: 'select 1' })
  // 0.8 s to the database, and 0.8 s back.
  proxy.slow(800)
  const asked = authenticate(token)
  await delay(1000)
  await sql(url, 'update tokens set revoked_at = now()')
  const askedLater = t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause: 'revoked' }, 'while the answer is on its way')
  t.match(await asked, { user: 'alice' })
  proxy.slow(0)
  await t.rejects(authenticate(token), { name: 'TOKEN_INVALID', cause: 'revoked' }, 'when it has arrived')
  await askedLater
})

t.test('a known token is looked up before all unknown ones that wait, and is refused for none of them', async (t) => {
  const { database, tokens, url } = await startApp(t, { MAX_QUEUED: '150' })
  const authenticate = createAuthenticate(tokens, 1)
  const token = await tokens.create({ user: 'alice', readOnly: false })
  await authenticate(token)
  const unlock = await lockTokens(t, url)
  const answered: string[] = []
  const refused: string[] = []
  const ask = () => authenticate(createToken()).catch(({ name }) => {
    if (name === 'OVERLOADED') refused.push(name)
    else answered.push(name)
  })
  // Four statements of 64 are under way, the others wait.
  const unknown = []
  for (const length of [128, 128, 150]) {
    unknown.push(...Array.from({ length }, ask))
    await nextTurn()
  }
  // It is remembered for a millisecond.
  await delay(5)
  const known = authenticate(token).then(({ user }) => { answered.push(user) })
  await unlock()
  await Promise.all([...unknown, known])
  t.ok(answered.indexOf('alice') < 256 + 64, `answered as number ${answered.indexOf('alice')}`)
  t.equal(refused.length, 1)
  await database.close()
})

t.test('a token in use is looked up again while it is remembered, and no request waits for it', async (t) => {
  const { tokens, url } = await startApp(t)
  const authenticate = createAuthenticate(tokens, 1500)
  const token = await tokens.create({ user: 'alice', readOnly: false })
  await authenticate(token)
  const unlock = await lockTokens(t, url)
  const watcher = new pg.Client(url)
  await watcher.connect()
  t.teardown(() => watcher.end())
  while ((await watcher.query(waitingForLocks)).rowCount === 0) {
    t.match(await authenticate(token), { user: 'alice' })
    await delay(10)
  }
  await unlock()
  t.match(await authenticate(token), { user: 'alice' })
})

t.test('tokens in use at the same time are looked up again together', async (t) => {
  const { tokens } = await startApp(t)
  const authenticate = createAuthenticate(tokens, 1500)
  const texts = await Promise.all(Array.from({ length: 20 }, () => tokens.create({ user: 'alice', readOnly: false })))
  const statements: number[] = []
  const count = ({ items }: { items: number }) => { statements.push(items) }
  batchEvents.subscribe(count)
  t.teardown(() => batchEvents.unsubscribe(count))
  const total = () => statements.reduce((sum, items) => sum + items, 0)
  while (total() < 40) {
    for (const text of texts) {
      await authenticate(text)
      await nextTurn()
    }
    await delay(10)
  }
  t.equal(total(), 40)
  t.ok(statements.length < 40, `${statements}`)
})

t.test('a token is revoked once: when it was stays as it is', async (t) => {
  const { tokens } = await startApp(t)
  await tokens.create({ user: 'alice', readOnly: false })
  t.equal(await tokens.revoke({ user: 'alice' }), 1)
  const revoked = await tokens.list('alice')
  t.equal(await tokens.revoke({ user: 'alice' }), 0)
  t.strictSame(await tokens.list('alice'), revoked)
})

t.test('when the database can\'t be reached nobody is told that the token is wrong', async (t) => {
  const { app, log } = await startApp(t, { DATABASE_URL: 'postgres://postgres:secret@127.0.0.1:1/plants' })
  const answer = await app.inject({ url: '/plants', headers: { authorization: `Bearer ${createToken()}` } })
  t.equal(answer.statusCode, 503)
  t.strictSame(answer.json(), unavailable)
  t.match(answer.headers, { 'retry-after': '1' })
  t.notHas(answer.headers, 'www-authenticate')
  t.match(log.map((line) => JSON.parse(line)), [{ level: 'error', reqId: String, err: { message: /ECONNREFUSED/ } }])
})

t.test('a look-up that the database gives up fails every request that waited for it, and the next one asks again', async (t) => {
  const { url, as } = await startApp(t)
  const alice = await as('alice')
  const unlock = await lockTokens(t, url)
  const waiting = Promise.all(Array.from({ length: 10 }, () => alice.list()))
  const watcher = new pg.Client(url)
  await watcher.connect()
  t.teardown(() => watcher.end())
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await watcher.query(end)).rowCount === 0);
  for (const answer of await waiting) {
    t.equal(answer.statusCode, 503)
    t.strictSame(answer.json(), unavailable)
  }
  await unlock()
  t.equal((await alice.list()).statusCode, 200)
})
