// Checks tokens in random orders of look-ups, refreshes, revocations and failures. Only the last test uses
// a database.
import assert from 'node:assert/strict'
import fc from 'fast-check'
import t from 'tap'
import type { Access } from '../../src/access/bearer.ts'
import { createAuthenticator } from '../../src/access/token-cache.ts'
import { createToken, createTokens, hashToken, type Token, type Tokens } from '../../src/access/tokens.ts'
import type { Database, Row as DatabaseRow } from '../../src/database/database.ts'
import { ApiError, errors } from '../../src/errors.ts'
import { startApp } from '../support/app.ts'
import { authenticateWith } from '../support/authenticate.ts'
import { isError } from '../support/error-response.ts'
import { must, runSteps, settlePromises, stopClock } from '../support/orders.ts'

const step = fc.record({
  act: fc.oneof(
    { weight: 20, arbitrary: fc.constantFrom('request', 'request', 'request', 'wait') },
    { weight: 1, arbitrary: fc.constantFrom('revoke', 'erase') }
  ),
  user: fc.constantFrom('alice', 'alice', 'bob', 'nobody'),
  waitMs: fc.constantFrom(50, 200, 400, 800)
})

const token: Token = { id: '1', user: 'alice', readOnly: false, created: new Date(0) }
const dateOf = (ms: number) => ms === Infinity ? undefined : new Date(ms)

/** A token in the database, and the last result of its look-ups. */
const createRow = (user: string, expires: number) => ({
  user,
  expires,
  exists: user !== 'nobody',
  revokedAt: Infinity,
  lookUps: 0,
  requests: 0,
  failedAt: -Infinity,
  stored: undefined as { askedAt: number, isActive: boolean, isRefreshed: boolean } | undefined,
  /** Until this time, a refresh must start. */
  refreshBy: Infinity,
  wasRejected: false
})
type Row = ReturnType<typeof createRow>

t.test('in every order, a revocation takes effect in time, and no failure rejects a token', async (t) => {
  const advance = stopClock(t)
  await fc.assert(fc.asyncProperty(
    fc.scheduler(), fc.array(step, { minLength: 5, maxLength: 40 }), fc.constantFrom(0, 600, 1200, 3000),
    fc.infiniteStream(fc.constantFrom(false, false, false, true)),
    async (s, steps, ttlMs, failures) => {
      const rows = new Map(['alice', 'bob', 'nobody'].map((user) =>
        [createToken(), createRow(user, performance.now() + (user === 'bob' ? 2000 : Infinity))]))

      async function find (text: string): Promise<Token | undefined> {
        const askedAt = performance.now()
        const row = rows.get(text) as Row
        must(row.lookUps === 0, 'requests share a look-up')
        must(askedAt - (row.stored?.askedAt ?? -Infinity) >= 2 / 3 * ttlMs, 'a new token is not refreshed')
        must(row.requests > 0 || askedAt % (ttlMs / 12) === 0, 'refreshes start at the same time')
        row.lookUps++
        row.refreshBy = Infinity
        await s.schedule(Promise.resolve(), `${row.user}: read`)
        const { exists, revokedAt, expires } = row
        await s.schedule(Promise.resolve(), `${row.user}: result`)
        row.lookUps--
        if (failures.next().value) {
          row.failedAt = performance.now()
          throw new ApiError(errors.DATABASE_UNAVAILABLE)
        }
        if (!exists) return undefined
        row.stored = { askedAt, isActive: revokedAt === Infinity, isRefreshed: false }
        return { ...token, user: row.user, expires: dateOf(expires), revoked: dateOf(revokedAt) }
      }
      const { cached, isNew, check: lookUp } = createAuthenticator({ find } as unknown as Tokens, ttlMs)

      async function request (text: string, row: Row): Promise<void> {
        const [start, { stored, wasRejected }] = [performance.now(), row]
        const isFresh = stored !== undefined && start < stored.askedAt + ttlMs
        const isHit = isFresh && stored.isActive && start < row.expires
        row.requests++
        try {
          const hit = cached(text)
          must((hit !== undefined) === isHit, 'a token is cached for the TTL')
          if (isHit && start >= stored.askedAt + 2 / 3 * ttlMs && !stored.isRefreshed) {
            stored.isRefreshed = true
            row.refreshBy = start + ttlMs / 12
          }
          must(isNew(text) === (stored === undefined), 'only a token that was found is not new')
          const { user, validUntil }: Access = hit ?? await lookUp(text)
          must(user === row.user && !wasRejected, 'a rejected token stays rejected')
          const earliest = Math.min(start - ttlMs + Math.max(ttlMs, 1000), row.expires)
          must(validUntil >= earliest, 'the result of a look-up serves requests for at most the TTL')
          const latest = Math.min(row.revokedAt + Math.max(ttlMs, 1000), row.expires)
          must(validUntil <= latest && performance.now() < row.expires, 'an invalid token loses its effect')
        } catch (error) {
          const { name, cause } = error as Error
          if (name === 'TOKEN_INVALID') row.wasRejected = true
          if (name === 'DATABASE_UNAVAILABLE') must(row.failedAt >= start, 'the look-up has failed')
          else if (cause === 'unknown') must(!row.exists, 'an existing token is not unknown')
          else if (cause === 'revoked') must(row.revokedAt < Infinity, 'a valid token is not revoked')
          else must(cause === 'expired' && performance.now() >= row.expires, `${name} ${cause}`)
        }
        row.requests--
      }

      await runSteps(s, steps, async ({ act, user, waitMs }) => {
        const [text, row] = rows.entries().find(([, row]) => row.user === user) as [string, Row]
        if (act === 'request') request(text, row)
        else if (act === 'wait') {
          for (let ms = 0; ms < waitMs; ms += 50) {
            advance(50)
            await settlePromises()
          }
        } else {
          row.revokedAt = Math.min(row.revokedAt, performance.now())
          if (act === 'erase') row.exists = false
        }
      }, () => {
        for (const { refreshBy } of rows.values()) {
          must(performance.now() <= refreshBy, 'a token in use is refreshed')
        }
      })
      assert(rows.values().every(({ requests }) => requests === 0), 'every request ends')
    }
  ), { numRuns: 120 })
})

t.test('unknown tokens evict no token, and an evicted token gets the result of its look-up', async (t) => {
  let [isKnown, lookUps] = [true, 0]
  let pending: Promise<unknown> | undefined
  const find = async () => {
    lookUps++
    const found = isKnown ? token : undefined
    await pending
    return found
  }
  const authenticate = authenticateWith(createAuthenticator({ find } as unknown as Tokens, 60_000))
  const authenticateMany = (length: number) =>
    Promise.allSettled(Array.from({ length }, () => authenticate(createToken())))
  const text = createToken()
  await authenticate(text)
  isKnown = false
  for (let sent = 0; sent < 10_000; sent += 500) await authenticateMany(500)
  t.match(await authenticate(text), { user: 'alice' })
  t.equal(lookUps, 10_001)
  isKnown = true
  const result = Promise.withResolvers<void>()
  pending = result.promise
  const evicted = authenticate(createToken())
  pending = undefined
  await authenticateMany(10_000)
  result.resolve()
  t.match(await evicted, { user: 'alice' })
})

t.test('unknown tokens neither delay nor shed the look-up of a known token', async (t) => {
  const sent: Array<{ hashes: string[], finish: (rows: DatabaseRow[]) => void }> = []
  const lookUp = (_: unknown, [hashes]: [string[]]) =>
    new Promise<DatabaseRow[]>((resolve) => sent.push({ hashes, finish: resolve }))
  const { find } = createTokens({ lookUp } as unknown as Database, 150)
  let shed = 0
  // Two statements with 64 look-ups each are in flight. The other look-ups are queued.
  for (const length of [128, 150]) {
    for (let index = 0; index < length; index++) find(createToken()).catch(() => { shed++ })
    await settlePromises()
  }
  const text = createToken()
  const found = find(text, token)
  await settlePromises()
  t.equal(shed, 1)
  sent[0]?.finish([])
  while (sent.length < 3) await settlePromises()
  t.ok(sent.at(-1)?.hashes.includes(`\\x${hashToken(text)}`), 'the next statement has the look-up')
  sent.at(-1)?.finish([[hashToken(text), '1', 'alice', null, 'f', '0', null, null]])
  t.match(await found, token)
})

t.test('with TOKEN_CACHE_TTL=0 a request that checks its token again notices a revocation', async (t) => {
  let renewed = false
  const { app, as, tokens } = await startApp(t, { TOKEN_CACHE_TTL: '0' }, async (guarded) => {
    guarded.get('/renewals', { schema: { operationId: 'renewTwice' } }, async ({ identity }) => {
      const { validUntil } = identity
      await identity.renew()
      renewed = identity.validUntil > validUntil
      await tokens.revoke({ user: identity.user })
      await identity.renew()
    })
  })
  const { authorization } = await as('alice')
  const response = await app.inject({ url: '/renewals', headers: { authorization } })
  isError(t, response, 40102, 'The bearer token is not valid.')
  t.ok(renewed)
})
