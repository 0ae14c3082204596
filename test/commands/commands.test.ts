// Tests the commands migrate, token and user. test/system/commands/ has further tests of commands.
import { registerHooks } from 'node:module'
import { mock } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createTokens } from '../../src/access/tokens.ts'
import { expiry, label, userName } from '../../src/commands/arguments.ts'
import { withDatabase } from '../../src/commands/database.ts'
import { formatError } from '../../src/commands/format-error.ts'
import { createToken, listTokens, revokeTokens } from '../../src/commands/tokens.ts'
import { eraseUser, listUsers, ownedTables } from '../../src/commands/users.ts'
import { maxRevocationMs, readConfig } from '../../src/config.ts'
import { migrate } from '../../src/database/migrate.ts'
import { openDatabase } from '../../src/database/database.ts'
import { ApiError, errors } from '../../src/errors.ts'
import { statementEvents, type StatementEvent } from '../../src/events.ts'
import { createDatabase, sql } from '../support/database.ts'
import { migrations } from '../support/migrations.ts'
import { run } from '../support/program.ts'
import { onTerminal } from '../support/transfer.ts'

/** Returns the lines that `work` prints. */
async function printed (t: Test, work: () => Promise<void>): Promise<string[]> {
  const results = t.capture(console, 'log')
  await work()
  return results().flatMap(({ args }) => String(args[0]).split('\n'))
}

const url = await createDatabase(t)
const config = readConfig({ DATABASE_URL: url })
const database = openDatabase({ url, statementTimeoutMs: 60_000 })
t.teardown(() => database.close())
const tokens = createTokens(database)

t.test('an error becomes one line with all its causes', async (t) => {
  const cause = new AggregateError([
    new Error('connect ECONNREFUSED ::1:1'), new Error('connect ECONNREFUSED 127.0.0.1:1')
  ])
  t.equal(formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause })),
    'The database cannot be reached. connect ECONNREFUSED ::1:1 connect ECONNREFUSED 127.0.0.1:1')
})

t.test('an error with a known remedy becomes the error and the remedy', async (t) => {
  for (const code of [
    'SELF_SIGNED_CERT_IN_CHAIN', 'DEPTH_ZERO_SELF_SIGNED_CERT', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
    'UNABLE_TO_GET_ISSUER_CERT_LOCALLY'
  ]) {
    const cause = Object.assign(new Error('self-signed certificate in certificate chain; if the root CA is ' +
      'installed locally, try running Node.js with --use-system-ca'), { code })
    t.equal(formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause })),
      'self-signed certificate in certificate chain. Name the file of the authority that signed it in ' +
      'DATABASE_URL: …?sslmode=verify-full&sslrootcert=/path/to/ca.pem')
  }
})

t.test('without DATABASE_URL and without the development server, the message says what to set', async (t) => {
  // Make the import from dev/ fail, as in the container image, which has no folder dev/.
  const hooks = registerHooks({
    resolve: (specifier, context, next) =>
      next(specifier.replace('/dev/embedded-postgres.ts', '/dev/missing.ts'), context)
  })
  t.teardown(() => hooks.deregister())
  await t.rejects(withDatabase(readConfig({}), async () => {}), {
    message: 'DATABASE_URL is not set: expected a PostgreSQL database, ' +
      'such as postgres://plant_store:secret@localhost:5432/plant_store'
  })
})

const nextYear = new Date().getUTCFullYear() + 1

t.test('an expiry is a duration, a day (its start in UTC) or a time as token list shows it', async (t) => {
  for (const [text, ms] of Object.entries({ '90d': 90 * 86_400_000, '12h': 43_200_000, '1ms': 1 })) {
    const before = Date.now()
    const expires = expiry(text).getTime()
    t.ok(before + ms <= expires && expires <= Date.now() + ms, text)
  }
  for (const day of [`${nextYear}-01-01`, '9999-12-31']) t.strictSame(expiry(day), new Date(day))
  const time = `${nextYear}-02-03T04:05:06.789Z`
  t.strictSame(expiry(time), new Date(time))
  const message = 'Expected a duration such as 90d, 12h or 30s, or a future date such as 2027-01-01.'
  for (const text of [
    '', '0', '90', '-1d', '1.5d', 'soon', '2020-01-01', new Date().toISOString(), `${nextYear}-02-30`,
    `${nextYear}-1-1`, `${nextYear}-01-01T00:00:00Z`, `${nextYear}-01-01T00:00:00.000+01:00`,
    `01.01.${nextYear}`, '10000-01-01', '+010000-01-01', '9999999d'
  ]) t.throws(() => expiry(text), { message }, JSON.stringify(text))
})

t.test('users and labels consist of 1 to 255 printable characters', async (t) => {
  for (const name of ['a', 'Ada Lovelace', 'علي', '李', 'x'.repeat(255), '🌵'.repeat(255)]) {
    t.strictSame([userName(name), label(name)], [name, name])
  }
  for (const name of ['', 'a\nb', '\u0000', '\u001b[31m', '\u2028', '\u202e', '\ud800', 'x'.repeat(256)]) {
    t.throws(() => userName(name), { message: 'A user name is 1 to 255 printable characters.' })
    t.throws(() => label(name), { message: 'A label is 1 to 255 printable characters.' })
  }
})

t.test('migrate goes up, and down by one migration, and deletes no data without --with-data', async (t) => {
  const DATABASE_URL = await createDatabase(t, { template: 'template0' })
  const stdout = migrations.map((name) => `up ${name}\n`).join('')
  t.strictSame(await run(['migrate'], { DATABASE_URL }), { code: 0, stdout, stderr: '' })
  t.strictSame(await run(['migrate'], { DATABASE_URL }), { code: 0, stdout: 'nothing to do\n', stderr: '' })
  for (const name of migrations.slice(1).reverse()) t.strictSame(await migrate(DATABASE_URL, 'down'), [name])

  await sql(DATABASE_URL, "insert into plants (owner, id, name) values ('alice', 1, 'Monstera')")
  await t.rejects(migrate(DATABASE_URL, 'down'),
    { message: 'Undoing 0001_plants would delete data from plants. Add --with-data to allow that.' })
  t.equal((await sql(DATABASE_URL, 'select from plants')).length, 1)
  t.strictSame(await migrate(DATABASE_URL, 'down', true), ['0001_plants'])
})

t.test('tokens are created, listed by age with their state, and revoked', async (t) => {
  const create = async (user: string, options = {}) => {
    const [token] = await printed(t, () => createToken(config, { user, readOnly: false, ...options }))
    t.match(token, /^plant_[0-9a-z]{57}$/)
  }
  const listJson = async (user?: string) =>
    JSON.parse((await printed(t, () => listTokens(config, { user, json: true }))).join('\n'))
  const expires = new Date(Date.now() + 86_400_000)
  for (const [user, options] of [
    ['alice', {}], ['bob', { label: 'laptop', readOnly: true, expires }], ['alice', { expires: new Date(0) }]
  ] as const) await create(user, options)
  const [{ id }] = await listJson('alice')
  t.strictSame(await run(['token', 'revoke', id], { DATABASE_URL: url }),
    { code: 0, stdout: 'revoked 1\n', stderr: '' })

  const rows = await listJson()
  t.match(rows, [
    { id, user: 'alice', label: '', access: 'full', expires: 'never', state: 'revoked' },
    { user: 'bob', label: 'laptop', access: 'read-only', expires: expires.toISOString(), state: 'active' },
    { user: 'alice', label: '', access: 'full', expires: '1970-01-01T00:00:00.000Z', state: 'expired' }
  ])
  for (const row of rows) {
    t.strictSame(Object.keys(row), ['id', 'user', 'label', 'access', 'created', 'expires', 'state'])
    t.match(row.id, /^[0-9a-f]{16}$/)
    t.equal(new Date(row.created).toISOString(), row.created)
  }
  const [first, second, third] = rows
  t.strictSame(await printed(t, () => listTokens(config, { json: false })), [
    'ID                USER   LABEL   ACCESS     CREATED                   EXPIRES                   STATE',
    `${first.id}  alice          full       ${first.created}  never                     revoked`,
    `${second.id}  bob    laptop  read-only  ${second.created}  ${second.expires}  active`,
    `${third.id}  alice          full       ${third.created}  ${third.expires}  expired`
  ])
  t.strictSame(await listJson('bob'), [second])
  t.strictSame(await printed(t, () => listTokens(config, { user: 'nobody', json: false })),
    ['ID  USER  LABEL  ACCESS  CREATED  EXPIRES  STATE'])

  const revoke = (by: Parameters<typeof revokeTokens>[1]) => printed(t, () => revokeTokens(config, by))
  const before = await tokens.list('alice')
  t.strictSame(await revoke({ id }), ['already revoked'])
  t.strictSame(await tokens.list('alice'), before, 'a second revocation keeps the time of the first')
  t.strictSame(await run(['token', 'revoke', '--user', 'alice'], { DATABASE_URL: url }),
    { code: 0, stdout: 'revoked 1\n', stderr: '' })
  t.strictSame(await revoke({ user: 'alice' }), ['already revoked'])
  t.strictSame(await listJson('bob'), [second])
  for (const [by, which] of [
    [{ id: '0123456789abcdef' }, 'with the id 0123456789abcdef'], [{ user: 'nobody' }, 'of the user nobody']
  ] as const) {
    await t.rejects(revoke(by),
      { message: `There is no token ${which}. The command token list shows all tokens.` })
  }
})

t.test('token commands create no tables', async (t) => {
  const empty = readConfig({ DATABASE_URL: await createDatabase(t, { template: 'template0' }) })
  for (const command of [
    () => createToken(empty, { user: 'alice', readOnly: false }), () => listTokens(empty, { json: false }),
    () => revokeTokens(empty, { user: 'alice' })
  ]) {
    t.equal(formatError(await command().catch((error) => error)), 'relation "tokens" does not exist. ' +
      'Create the tables first: start the service, or run plant-store migrate.')
  }
  const tables = "select tablename from pg_tables where schemaname = 'public'"
  t.strictSame(await sql(empty.DATABASE_URL as string, tables), [])
})

const addPlants = (user: string, count: number) =>
  sql(url, "insert into plants (owner, id, name) select $1, id, '' from generate_series(1, $2::int) id",
    [user, count])
const plantsOf = async (user: string) =>
  (await sql(url, 'select id::int from plants where owner = $1', [user])).map(({ id }) => id)

/** As soon as the user has no plants, the database creates one plant. This happens up to `times` times. */
async function createAgain (t: Test, user: string, times: number): Promise<void> {
  await sql(url, `create sequence repetitions;
    create function create_again () returns trigger language plpgsql as $$ begin
      if not exists (select from plants where owner = '${user}') and nextval('repetitions') <= ${times} then
        insert into plants (owner, id, name) values ('${user}', 9999, 'again');
      end if;
      return null;
    end $$;
    create trigger again after delete on plants for each statement execute function create_again ()`)
  t.teardown(() => sql(url, 'drop function create_again cascade; drop sequence repetitions'))
}

t.test('the commands know every table with data of users', async (t) => {
  const tables = await sql(url, 'select relname as name from pg_stat_user_tables order by relname')
  t.strictSame(tables.map(({ name }) => name), ['migrations', 'tokens', ...ownedTables].sort(),
    'add a table with an owner to `ownedTables`')
})

t.test('user list counts the plants and tokens of each user', async (t) => {
  await sql(url, 'delete from tokens')
  await tokens.create({ user: 'Zoë', readOnly: false })
  await sql(url, "update tokens set created_at = '2026-01-01', revoked_at = '2026-02-03 04:05:06+00'")
  await tokens.create({ user: 'ann', readOnly: true })
  for (const [user, count] of [['ann', 2500], ['bob', 1]] as const) await addPlants(user, count)
  const [bob] = await sql(url, "select created_at from plants where owner = 'bob'")
  const [ann] = await sql(url, "select max(created_at) as created_at from plants where owner = 'ann'")
  const time = (row: Record<string, unknown> | undefined) => (row?.created_at as Date).toISOString()
  t.strictSame(await printed(t, () => listUsers(config)), [
    'USER  PLANTS  TOKENS  NEWEST CHANGE',
    'Zoë   0       1       2026-02-03T04:05:06.000Z',
    `ann   2500    1       ${time(ann)}`,
    `bob   1       0       ${time(bob)}`
  ])
})

t.test('user erase deletes what a user has, and what instances create before they notice it', async (t) => {
  await createAgain(t, 'ann', 1)
  await tokens.create({ user: 'bob', readOnly: false })
  mock.timers.enable({ apis: ['setTimeout'] })
  t.teardown(() => mock.timers.reset())
  const waiting = new Promise<string>((resolve) => t.capture(console, 'error', resolve))
  const erased = printed(t, () => eraseUser(config, 'ann', true))
  t.equal(await waiting, 'Waiting 15 s for requests with the revoked tokens.')
  mock.timers.tick(maxRevocationMs - 1)
  t.strictSame(await plantsOf('ann'), [9999])
  mock.timers.tick(1)
  t.strictSame(await erased, [
    'Erased 2500 plants and 1 tokens of ann.',
    'Left: 0 plants and 0 tokens of ann. Backups and logs are not erased.'
  ])
  t.strictSame([await plantsOf('ann'), await plantsOf('bob')], [[], [1]])
  t.strictSame((await tokens.list()).map(({ user }) => user), ['Zoë', 'bob'])
})

t.test('user erase names the identity provider, which can still issue tokens', async (t) => {
  const withJwts = { ...config, JWT_ISSUER: 'https://id.example' }
  t.match(await printed(t, () => eraseUser(withJwts, 'https://id.example|42', true)), [
    'Erased 0 plants and 0 tokens of https://id.example|42.', /^Left: 0 plants/,
    'The identity provider can still issue tokens for this user.'
  ])
  t.equal((await printed(t, () => eraseUser(config, 'a|b', true))).length, 2)
})

t.test('user erase fails while something still creates plants of the user', async (t) => {
  await addPlants('dan', 1)
  await createAgain(t, 'dan', 9)
  await t.rejects(printed(t, () => eraseUser(config, 'dan', true)),
    { message: 'Something still creates plants or tokens of dan. Erase again.' })
})

t.test('user erase waits for a transaction that has created a plant of the user', async (t) => {
  const [operator, later] = [new pg.Client(url), new pg.Client(url)]
  for (const client of [operator, later]) {
    await client.connect()
    t.teardown(() => client.end())
  }
  await operator.query("begin; insert into plants (owner, id, name) values ('eve', 1, 'Fern')")
  const sent: StatementEvent[] = []
  const note = (event: StatementEvent) => { sent.push(event) }
  statementEvents.subscribe(note)
  t.teardown(() => statementEvents.unsubscribe(note))
  const erased = printed(t, () => eraseUser(config, 'eve', true))
  // After these statements, the command only looks whether the transaction has ended.
  while (sent.length < 3 * ownedTables.length + 6) await nextTick()
  // This transaction begins later, so the erasure does not wait for its end.
  await later.query("begin; insert into plants (owner, id, name) values ('bob', 2, 'Ivy')")
  await operator.query('commit')
  t.match(await erased, ['Erased 0 plants and 0 tokens of eve.', /^Left: 0 plants and 0 tokens of eve/])
  t.strictSame(await plantsOf('eve'), [])
})

t.test('user erase asks on a terminal, and needs --yes elsewhere', async (t) => {
  const environment = { DATABASE_URL: url }
  await addPlants('fay', 3)
  const question = 'Erase 3 plants and 0 tokens of fay? [y/N] '
  const no = await onTerminal(['user', 'erase', 'fay'], environment, { question, answer: '\n' })
  t.match(no, { code: 1, shown: /Nothing is erased\.\r\n$/ })
  t.strictSame(await plantsOf('fay'), [1, 2, 3])
  const yes = await onTerminal(['user', 'erase', 'fay'], environment, { question, answer: 'y\n' })
  t.match(yes, { code: 0, shown: /Erased 3 plants and 0 tokens of fay\./ })
  t.strictSame(await plantsOf('fay'), [])
  t.strictSame(await run(['user', 'erase', 'bob'], environment), {
    code: 2,
    stdout: '',
    stderr: 'error: user erase deletes all plants and tokens of bob. Add --yes to confirm.\n'
  })
})
