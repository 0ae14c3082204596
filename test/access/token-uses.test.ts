// Tests that uses of tokens are recorded, and that a recording that fails or waits disturbs nothing.
import { mock } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { startRecordingUses } from '../../src/access/token-uses.ts'
import { createToken, hashToken } from '../../src/access/tokens.ts'
import { openDatabase } from '../../src/database/database.ts'
import { connectionEvents, tokenUseEvents } from '../../src/telemetry-events.ts'
import { startApp } from '../support/app.ts'
import { openSession, sql } from '../support/database.ts'

/** Starts an app, and records uses, by default as the owner of the tables. */
async function start (t: Test, role?: string) {
  const service = await startApp(t)
  const url = Object.assign(new URL(service.url), role !== undefined && { username: role, password: 'x' })
  const { writeAside, close } = openDatabase({ url: url.href, statementTimeoutMs: 5000 })
  t.teardown(close)
  /** The number of tokens in each statement that has ended. */
  const writes: number[] = []
  const write: typeof writeAside = (statement, values) =>
    writeAside(statement, values).finally(() => writes.push((values?.[0] as string[]).length))
  const stop = startRecordingUses({ writeAside: write }, service.app.log)
  t.teardown(stop)
  const haveUses = 'select username from tokens where last_used_at <> created_at order by username'
  const used = async () => (await sql(service.url, haveUses)).map(({ username }) => username)
  const warnings = () => service.log.map((line) => JSON.parse(line)).filter(({ level }) => level === 'warn')
  return { ...service, stop, used, warnings, writes }
}

t.test('one statement records all tokens that were used', async (t) => {
  const { app, as, stop, tokens, url, used, writes } = await start(t)
  const [alice, bob] = [await as('alice'), await as('bob', { readOnly: true })]
  const [revoked, expired] = [await as('carol'), await as('dan', { expires: new Date(Date.now() - 1) })]
  await as('eve')
  await tokens.revoke({ user: 'carol' })
  for (const [send, status] of [
    [alice.list, 200], [alice.list, 200], [() => bob.delete(1), 403], [revoked.list, 401], [expired.list, 401]
  ] as const) t.equal((await send()).statusCode, status)
  const headers = { authorization: `Bearer ${createToken()}` }
  t.equal((await app.inject({ url: '/plants', headers })).statusCode, 401)
  t.strictSame(await used(), [], 'no request writes')
  await stop()
  t.strictSame([await used(), writes], [['alice', 'bob'], [2]])
  const late = "select from tokens where username = 'alice' and last_used_at > now() - interval '1 minute'"
  t.equal((await sql(url, late)).length, 1)
})

t.test('a token is recorded at most once a minute', async (t) => {
  const { as, stop, url, used } = await start(t)
  for (const [user, seconds] of [['alice', 59], ['bob', 61], ['carol', 0]] as const) {
    const client = await as(user)
    await sql(url, `update tokens set created_at = now() - interval '1 h',
      last_used_at = now() - interval '${seconds} s' where username = $1`, [user])
    await client.list()
  }
  await sql(url, "update tokens set created_at = last_used_at where username = 'carol'")
  const readUses = () => sql(url, 'select username, last_used_at::text from tokens order by username')
  const before = await readUses()
  await stop()
  const changed = (await readUses()).filter((row, index) => row.last_used_at !== before[index]?.last_used_at)
  t.strictSame(changed.map(({ username }) => username), ['bob', 'carol'], 'a new token has no use yet')
  t.strictSame(await used(), ['alice', 'bob', 'carol'])
})

t.test('many tokens need several statements, and a locked token delays none', async (t) => {
  const { as, stop, url, used, warnings, writes } = await start(t)
  for (const user of ['alice', 'bob']) await (await as(user)).list()
  for (let other = 0; other < 2400; other++) tokenUseEvents.publish({ hash: hashToken(String(other)) })
  await openSession(t, url, "begin; select from tokens where username = 'alice' for update")
  await stop()
  t.strictSame([writes, await used(), warnings()], [[1000, 1000, 402], ['bob'], []])
})

t.test('a statement has the uses since the last one, and a stop is the last', async (t) => {
  mock.timers.enable({ apis: ['setTimeout', 'Date'] })
  t.teardown(() => mock.timers.reset())
  const { log } = (await startApp(t)).app
  const use = (name: string) => tokenUseEvents.publish({ hash: hashToken(name) })
  const sent: string[][] = []
  const writeAside = async (_statement: unknown, [hashes]: unknown[] = []) => {
    sent.push(hashes as string[])
    // A use while the statement runs.
    if (sent.length === 1) {
      await nextTick()
      use('alice')
    }
  }
  const stop = startRecordingUses({ writeAside }, log)
  for (const name of ['alice', 'bob']) use(name)
  for (let minute = 0; minute < 3; minute++) {
    mock.timers.tick(60_000)
    for (let tick = 0; tick < 5; tick++) await nextTick()
  }
  const [alice, bob, carol] = ['alice', 'bob', 'carol'].map((name) => `\\x${hashToken(name)}`)
  t.strictSame(sent.map((hashes) => hashes.toSorted()), [[alice, bob].sort(), [alice]])
  use('carol')
  await stop()
  use('dan')
  mock.timers.tick(60_000)
  await stop()
  t.strictSame(sent.slice(2), [[carol]])
})

t.test('a stop does not wait long for a database that does not respond', async (t) => {
  const { log } = (await startApp(t)).app
  const stop = startRecordingUses({ writeAside: () => new Promise(() => {}) }, log)
  tokenUseEvents.publish({ hash: hashToken('used') })
  await stop()
  t.pass('it has stopped')
})

t.test('a role that may only read gets one warning, and longer and longer pauses', async (t) => {
  const role = `reader_${process.pid}`
  const serverUrl = process.env.TEST_DATABASE_URL as string
  await sql(serverUrl, `create role ${role} login password 'x'`)
  t.teardown(() => sql(serverUrl, `drop role ${role}`))
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const { as, stop, url, used, warnings, writes } = await start(t, role)
  await sql(url, `grant select on tokens to ${role}`)
  const alice = await as('alice')
  const opened: string[] = []
  connectionEvents.subscribe(({ event }) => { opened.push(event) })
  t.equal((await alice.list()).statusCode, 200)
  // The list may run on the connection for look-ups, while the one for lists is opened.
  while (opened.length < 2) await nextTick()
  let attempts = 0
  async function passMinutes (minutes: number, isAttempt: boolean): Promise<void> {
    mock.timers.tick(minutes * 60_000)
    if (isAttempt) attempts++
    while (writes.length < attempts) await nextTick()
    // The next timer starts after the attempt.
    for (let tick = 0; tick < 5; tick++) await nextTick()
    t.equal(writes.length, attempts)
  }
  for (const pause of [1, 2, 4, 8, 16, 32, 60, 60]) {
    await passMinutes(pause - 0.5, false)
    await passMinutes(0.5, true)
  }
  const message = 'the last use of tokens cannot be recorded'
  t.match(warnings(), [{ msg: message, err: { message: 'permission denied for table tokens' } }])
  t.strictSame(await used(), [])
  await sql(url, `grant update (last_used_at) on tokens to ${role}`)
  await passMinutes(60, true)
  t.strictSame(await used(), ['alice'], 'the privilege for the column is enough')
  await passMinutes(1, false)
  await sql(url, `revoke update (last_used_at) on tokens from ${role}`)
  tokenUseEvents.publish({ hash: hashToken('another') })
  await passMinutes(1, true)
  t.equal(warnings().length, 2, 'a new failure gets a new warning')
  await stop()
  t.equal(writes.length, attempts, 'a stop does not try again')
})
