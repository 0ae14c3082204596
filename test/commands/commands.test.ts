// Tests the commands migrate, token and user. test/system/commands/ has further tests of commands.
import { registerHooks, syncBuiltinESMExports } from 'node:module'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { mock } from 'node:test'
import { setImmediate as nextTick } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import manifest from '../../package.json' with { type: 'json' }
import { createToken, createTokens, hashToken, isPrintable, isUnambiguous } from '../../src/access/tokens.ts'
import { withDatabase } from '../../src/commands/database.ts'
import { countOf, formatError } from '../../src/commands/format.ts'
import { run as runCommand } from '../../src/commands/program.ts'
import { printQuickStart } from '../../src/commands/tokens.ts'
import { lockForImport } from '../../src/commands/user-lock.ts'
import { eraseUser } from '../../src/commands/users.ts'
import { readConfig } from '../../src/config.ts'
import { openClient } from '../../src/database/servers.ts'
import { openDatabase } from '../../src/database/database.ts'
import { ownedTables, tableNames } from '../../src/domains.ts'
import { ApiError, errors } from '../../src/errors.ts'
import { plantsTable } from '../../src/plants/plant.ts'
import { openProxy } from '../system/faults/proxy.ts'
import { createDatabase, openSession, sql } from '../support/database.ts'
import { migrations } from '../support/migrations.ts'

const url = await createDatabase(t)
const database = openDatabase({ url, statementTimeoutMs: 60_000 })
t.teardown(() => database.close())
const tokens = createTokens(database)

/** Runs the program in this process. test/system/commands/ starts processes, which takes a second each. */
async function run (args: string[], environment: Record<string, string> = { DATABASE_URL: url }) {
  const { env, exit } = process
  const outputs = [t.capture(process.stdout, 'write'), t.capture(process.stderr, 'write')] as const
  const ended = (code: unknown) => {
    const [stdout, stderr] = outputs.map((output) => output().map(({ args: [text] }) => text).join(''))
    return { code, stdout, stderr }
  }
  let exited: ReturnType<typeof ended> | undefined
  Object.assign(process, {
    env: { ...env, ...environment },
    exit (code: number) {
      exited = ended(code)
      throw new Error('process.exit() does not return')
    }
  })
  await runCommand(args).catch((error) => { if (exited === undefined) throw error })
  const result = exited ?? ended(process.exitCode ?? 0)
  Object.assign(process, { env, exit, exitCode: undefined })
  for (const output of outputs) output.restore()
  return result
}

const succeeds = (...lines: string[]) =>
  ({ code: 0, stdout: lines.map((line) => `${line}\n`).join(''), stderr: '' })
const fails = (line: string, code = 1) => ({ code, stdout: '', stderr: `${line}\n` })

t.test('bad arguments get one line and exit code 2, and without arguments the program serves', async (t) => {
  t.strictSame(await run(['--version']), succeeds(manifest.version))
  const noUser = 'expected either --all or a user of 1 to 255 printable characters'
  const idOrToken = 'expected the id that token list shows, or - to read the token from standard input'
  const clear = 'Expected no spaces at an end or in a row, no invisible characters, and Unicode in form NFC.'
  const errors: Array<[args: string[], error: string]> = [
    [['serv'], "unknown command 'serv' (Did you mean serve?)"],
    [['token', 'create', 'a\nb'], "command-argument value 'a b' is invalid for argument 'user'. " +
      'Expected 1 to 255 printable characters.'],
    [['token', 'create', 'a', '--label', ''],
      "option '--label <text>' argument '' is invalid. Expected 1 to 255 printable characters."],
    [['token', 'revoke'], 'expected either the id of a token or --user'],
    [['token', 'revoke', '-', '--user', 'alice'], 'expected either the id of a token or --user'],
    [['token', 'revoke', 'x'], idOrToken],
    [['token', 'show', '0123456789ABCDEF'], idOrToken],
    [['token', 'create', ' a'], `command-argument value ' a' is invalid for argument 'user'. ${clear}`],
    [['token', 'list', '--unused', '90'], "option '--unused <duration>' argument '90' is invalid. " +
      'Expected a duration such as 90d, 12h or 30s.'],
    [['user', 'erase', 'bob'], 'user erase deletes all rows and tokens of bob. Add --yes to confirm.'],
    [['import'], noUser],
    [['import', 'a\nb'], noUser],
    [['import', 'alice '], clear],
    [['export', '--all', 'alice', 'plants.csv'], noUser],
    [['export', 'alice', '--table', 'tokens'],
      `--table: expected ${ownedTables.map(({ name }) => name).join(' or ')}`],
    [['import', 'alice', '--chunk', '0'], "option '--chunk <rows>' argument '0' is invalid. " +
      'Expected a whole number from 1 to 999999999.'],
    [['import', 'alice', 'plants.txt'],
      'plants.txt: expected --format, or a name that ends in .ndjson, .csv, .ndjson.gz or .csv.gz'],
    [['import', 'alice', '--format', 'xml'], "option '--format <format>' argument 'xml' is invalid. " +
      'Allowed choices are ndjson, csv, ndjson.gz, csv.gz.']
  ]
  // The commands must fail before they connect.
  const unreachable = { DATABASE_URL: 'postgres://127.0.0.1:1/plants' }
  for (const [args, error] of errors) t.strictSame(await run(args, unreachable), fails(`error: ${error}`, 2))
  t.strictSame(await run([], { PORT: 'x' }), fails('PORT: expected 0 to 65535, got "x"'))
})

t.test('an error becomes one line with all its causes, or with its remedy', async (t) => {
  const format = (cause: Error) => formatError(new ApiError(errors.DATABASE_UNAVAILABLE, { cause }))
  const refused = ['connect ECONNREFUSED ::1:1', 'connect ECONNREFUSED 127.0.0.1:1']
  t.equal(format(new AggregateError(refused.map((message) => new Error(message)))),
    `The database cannot be reached. ${refused.join(' ')}`)
  for (const code of [
    'SELF_SIGNED_CERT_IN_CHAIN', 'DEPTH_ZERO_SELF_SIGNED_CERT', 'UNABLE_TO_VERIFY_LEAF_SIGNATURE',
    'UNABLE_TO_GET_ISSUER_CERT_LOCALLY'
  ]) {
    const cause = Object.assign(new Error('self-signed certificate'), { code })
    t.equal(format(cause), 'self-signed certificate. Name the certificate file of the authority in ' +
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

t.test('an expiry is a duration or a day (its start in UTC)', async (t) => {
  const nextYear = new Date().getUTCFullYear() + 1
  const create = (text: string) => run(['token', 'create', 'alice', '--expires', text])
  const before = Date.now()
  for (const text of ['90d', '12h', '9999-12-31']) t.match(await create(text), { code: 0 }, text)
  const [days, hours, date] = (await sql(url, 'delete from tokens returning expires_at'))
    .map(({ expires_at: time }) => Number(time)) as [number, number, number]
  t.strictSame([days, hours].map((time) => Math.floor((time - before) / 3_600_000)), [2160, 12])
  t.equal(date, Date.parse('9999-12-31Z'))
  for (const text of [
    '', '0', '90', '-1d', '1.5d', 'soon', '2020-01-01', `${nextYear}-02-30`, `${nextYear}-1-1`,
    `${nextYear}-01-01T00:00:00Z`, `01.01.${nextYear}`, '10000-01-01', '+010000-01-01', '9999999d'
  ]) {
    t.strictSame(await create(text), fails(`error: option '--expires <when>' argument '${text}' ` +
      'is invalid. Expected a duration such as 90d, 12h or 30s, or a future date such as 2027-01-01.', 2))
  }
})

t.test('users and labels consist of 1 to 255 printable characters', async (t) => {
  const good = ['a', 'Ada Lovelace', 'علي', '李', 'x'.repeat(255), '🌵'.repeat(255)]
  const bad = ['', 'a\nb', '\u0000', '\u001b[31m', '\u2028', '\u202e', '\ud800', 'x'.repeat(256)]
  t.strictSame([...good, ...bad].filter((text) => isPrintable(text)), good)
})

t.test('a new user differs visibly from others, and lists show invisible parts of older ones', async (t) => {
  const good = ['a', 'Ada Lovelace', 'Zo\u00eb', 'علي', '李', '🌵', 'https://id.example|42']
  // The second form is what a list shows.
  const bad = new Map([
    ['a ', 'a\\u{20}'], [' a', '\\u{20}a'], ['a  b', 'a\\u{20} b'], ['a\u00a0b', 'a\\u{a0}b'],
    ['a\u3000', 'a\\u{3000}'], ['a\u034fb', 'a\\u{34f}b'], ['\u3164', '\\u{3164}'], ['a\ufe0f', 'a\\u{fe0f}'],
    ['\u2800a', '\\u{2800}a'], ['Zoe\u0308', 'Zoe\\u{308}'], ['\u212b ', '\\u{212b}\\u{20}']
  ])
  const users = [...good, ...bad.keys()]
  t.strictSame(users.filter((text) => isUnambiguous(text)), good)
  for (const user of users) await tokens.create({ user, readOnly: false })
  const { stdout } = await run(['token', 'list'])
  const shown = [...good, ...bad.values()].map((text) => `  ${text}  `)
  t.strictSame(shown.filter((text) => !stdout?.includes(text)), [])
  for (const user of users) t.match(await run(['token', 'revoke', '--user', user]), { code: 0 })
  await sql(url, 'delete from tokens')
})

t.test('tokens are created, listed by age with their state, and revoked', async (t) => {
  const expires = '9999-12-31T00:00:00.000Z'
  for (const words of [['alice'], ['bob', '--label', 'laptop', '--read-only', '--expires', '9999-12-31']]) {
    t.match(await run(['token', 'create', ...words]), { code: 0, stdout: /^plant_[0-9a-z]{57}\n$/ })
  }
  await tokens.create({ user: 'alice', readOnly: false, expires: new Date(0) })
  const list = async (...words: string[]) =>
    JSON.parse((await run(['token', 'list', '--json', ...words])).stdout as string)
  const [{ id }] = await list('--user', 'alice')
  t.strictSame(await run(['token', 'revoke', id]), succeeds('revoked 1'))

  const rows = await list()
  const never = { expires: 'never', lastUsed: 'never' }
  const full = { label: '', access: 'full' }
  t.strictSame(rows.map(({ id, created, ...row }: Record<string, string>) => row), [
    { user: 'alice', ...full, ...never, state: 'revoked' },
    { user: 'bob', label: 'laptop', access: 'read-only', ...never, expires, state: 'active' },
    { user: 'alice', ...full, ...never, expires: '1970-01-01T00:00:00.000Z', state: 'expired' }
  ])
  for (const row of rows) {
    t.match(row, { id: /^[0-9a-f]{16}$/, created: /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/ })
  }
  const [first, second, third] = rows
  const use = "update tokens set last_used_at = now() where username = 'bob' returning last_used_at as time"
  const [used] = (await sql(url, use)).map(({ time }) => (time as Date).toISOString())
  t.strictSame(await run(['token', 'list']), succeeds(
    'ID                USER   LABEL   ACCESS     CREATED                   EXPIRES                   ' +
      'LAST USED                 STATE',
    `${first.id}  alice          full       ${first.created}  never                     ` +
      'never                     revoked',
    `${second.id}  bob    laptop  read-only  ${second.created}  ${second.expires}  ` +
      `${used}  active`,
    `${third.id}  alice          full       ${third.created}  ${third.expires}  ` +
      'never                     expired'
  ))
  const heads = 'ID  USER  LABEL  ACCESS  CREATED  EXPIRES  LAST USED  STATE'
  t.strictSame(await run(['token', 'list', '--user', 'nobody']), succeeds(heads))

  const before = await tokens.list('alice')
  t.strictSame(await run(['token', 'revoke', id]), succeeds('already revoked'))
  t.strictSame(await tokens.list('alice'), before, 'a second revocation keeps the time of the first')
  for (const printed of ['revoked 1', 'already revoked']) {
    t.strictSame(await run(['token', 'revoke', '--user', 'alice']), succeeds(printed))
  }
  t.strictSame(await list('--user', 'bob'), [{ ...second, lastUsed: used }])
  for (const [words, which] of [
    [['0123456789abcdef'], 'with the id 0123456789abcdef'], [['--user', 'nobody'], 'of the user nobody']
  ] as const) {
    t.strictSame(await run(['token', 'revoke', ...words]),
      fails(`There is no token ${which}. The command token list shows all tokens.`))
  }
})

t.test('a command warns of a misspelled setting', async (t) => {
  const { code, stderr } = await run(['token', 'list'], { DATABASE_URL: url, TOKEN_CACHE_TLL: '1s' })
  t.strictSame([code, stderr], [0, 'TOKEN_CACHE_TLL is no setting: did you mean TOKEN_CACHE_TTL?\n'])
})

t.test('token list --unused shows active tokens that were neither created nor used since', async (t) => {
  await sql(url, 'delete from tokens')
  for (const user of ['new', 'old', 'used', 'revoked', 'expired']) {
    await tokens.create({ user, readOnly: false, expires: user === 'expired' ? new Date(0) : undefined })
  }
  await sql(url, `update tokens set created_at = now() - interval '99 days', last_used_at =
      case username when 'used' then now() - interval '89 days' else now() - interval '99 days' end,
      revoked_at = case username when 'revoked' then now() end where username <> 'new'`)
  const usersOf = async (...words: string[]) =>
    JSON.parse((await run(['token', 'list', '--json', '--unused', ...words])).stdout as string)
      .map(({ user }: { user: string }) => user).sort()
  t.strictSame(await usersOf('90d'), ['old'])
  t.strictSame(await usersOf('88d'), ['old', 'used'])
  t.strictSame(await usersOf('88d', '--user', 'used'), ['used'])
  await sql(url, 'delete from tokens')
})

t.test('token show and revoke read a token from standard input, and no output repeats a token', async (t) => {
  const text = await tokens.create({ user: 'leo', label: 'ci', readOnly: true })
  const id = hashToken(text).slice(0, 16)
  const withInput = (words: string[], input: string, isTTY = false) => {
    t.intercept(process, 'stdin', { value: Object.assign(new PassThrough().end(input), { isTTY }) })
    return run(['token', ...words])
  }
  const shown = await run(['token', 'show', id, '--json'])
  t.match(JSON.parse(shown.stdout as string), [{ id, user: 'leo', label: 'ci', state: 'active' }])
  t.strictSame(await withInput(['show', '-', '--json'], `${text}\r\n`), shown)
  const asked = 'Token (hidden): \n'
  t.strictSame(await withInput(['show', '-', '--json'], `${text}\n`, true), { ...shown, stderr: asked })
  for (const [input, error] of [
    ['', 'Standard input has no complete token.'],
    [text.slice(0, -1), 'Standard input has no complete token.'],
    ['eyJh.eyJp.c2ln', 'This is a JWT, which cannot be revoked: see Checks in docs/identity.md.'],
    [createToken(), /^There is no token with the id [0-9a-f]{16}\. The command token list shows all/]
  ] as const) {
    for (const command of ['show', 'revoke']) {
      const { code, stdout, stderr } = await withInput([command, '-'], input)
      t.match({ code, stdout, stderr: stderr?.trimEnd() }, { code: 1, stdout: '', stderr: error })
    }
  }
  t.strictSame(await withInput(['revoke', '-'], ` ${text}\n`), succeeds('revoked 1'))
  t.match(await withInput(['show', '-'], text), { code: 0, stdout: / revoked$/m })
  for (const secret of [text, text.toUpperCase(), 'eyJh.eyJp.c2ln']) {
    for (const words of [
      [secret], ['token', secret], ['token', 'show', secret], ['token', 'revoke', secret],
      ['token', 'revoke', '--user', secret], ['user', secret], ['import', '--format', secret]
    ]) {
      const { code, stdout, stderr } = await run(words)
      t.ok(code !== 0 && stderr)
      t.notMatch(`${stdout}${stderr}`, secret.slice(9), words.join(' ').replace(secret, ''))
    }
  }
})

t.test('the quick start shows no further token once there are tokens', async (t) => {
  await tokens.create({ user: 'alice', readOnly: false })
  const printed = t.capture(console, 'error')
  for (const [folder, setting] of [
    ['.data', ''], ['/srv/plants-2', 'DATA_DIR=/srv/plants-2 '],
    ["my plants' data", "DATA_DIR='my plants'\\'' data' "]
  ] as const) {
    await printQuickStart(database, plantsTable, 'http://127.0.0.1:3000', folder)
    t.strictSame(printed.args(), [[`To create a token: ${setting}npx plant-store token create <user>`]])
  }
})

t.test('only migrate creates the tables, and a second migrate has nothing to do', async (t) => {
  const environment = { DATABASE_URL: await createDatabase(t, { template: 'template0' }) }
  for (const words of [['create', 'alice'], ['list'], ['revoke', '--user', 'alice']]) {
    t.strictSame(await run(['token', ...words], environment), fails('relation "tokens" does not exist. ' +
      'Create the tables first: start the service, or run plant-store migrate.'))
  }
  t.strictSame(await run(['migrate'], environment), succeeds(...migrations.map((name) => `up ${name}`)))
  t.strictSame(await run(['migrate'], environment), succeeds('nothing to do'))
})

const addPlants = (user: string, count: number) =>
  sql(url, "insert into plants (owner, id, name) select $1, id, '' from generate_series(1, $2::int) id",
    [user, count])
const plantsOf = async (user: string) =>
  (await sql(url, 'select id::int from plants where owner = $1', [user])).map(({ id }) => id)

/** Formats the numbers of rows in all tables, such as `2 plants and 0 tokens`. */
const counts = (plants: number, tokens = 0) => new Intl.ListFormat('en').format(tableNames
  .map((name) => countOf(name === 'plants' ? plants : name === 'tokens' ? tokens : 0, name)))
const anyTable = tableNames.join(' or ')

t.test('the commands know every table with data of users', async (t) => {
  const found = await sql(url, 'select relname as name from pg_stat_user_tables order by relname')
  t.strictSame(found.map(({ name }) => name), ['migrations', ...tableNames].sort(),
    'src/domains.ts has each table')
})

t.test('user list counts the plants and tokens of each user', async (t) => {
  await sql(url, 'delete from tokens')
  for (const user of ['Zoë', 'ann']) await tokens.create({ user, readOnly: false })
  for (const [user, count] of [['ann', 2500], ['bob', 1]] as const) await addPlants(user, count)
  await sql(url, `update tokens set created_at = '2026-01-01Z',
    revoked_at = case username when 'Zoë' then '2026-02-03 04:05:06Z'::timestamptz end`)
  await sql(url, "update plants set created_at = '2026-01-02Z'::timestamptz + id * interval '1.5 s'")
  const { code, stdout = '' } = await run(['user', 'list'])
  const [head = [], ...rows] = stdout.trim().split('\n').map((line) => line.split(/ {2,}/))
  t.strictSame([code, head], [0, ['USER', ...tableNames.map((name) => name.toUpperCase()), 'NEWEST CHANGE']])
  const columns = ['USER', 'PLANTS', 'TOKENS', 'NEWEST CHANGE'].map((name) => head.indexOf(name))
  t.strictSame(rows.map((row) => columns.map((column) => row[column])), [
    ['Zoë', '0', '1', '2026-02-03T04:05:06.000Z'],
    ['ann', '2500', '1', '2026-01-02T01:02:30.000Z'],
    ['bob', '1', '0', '2026-01-02T00:00:01.500Z']
  ])
})

t.test('user erase deletes what a user has, and what instances create before they notice it', async (t) => {
  await tokens.create({ user: 'bob', readOnly: false })
  mock.timers.enable({ apis: ['setTimeout'] })
  // Without this call, src/commands/users.ts would keep the real function that it imports.
  syncBuiltinESMExports()
  t.teardown(() => {
    mock.timers.reset()
    syncBuiltinESMExports()
  })
  const waiting = new Promise<string>((resolve) => t.capture(console, 'error', resolve))
  const printed = t.capture(console, 'log')
  const erased = eraseUser(readConfig({ DATABASE_URL: url }), 'ann', true)
  t.equal(await waiting, 'Waiting 24 s for requests with the revoked tokens.')
  t.strictSame(await plantsOf('ann'), [])
  await addPlants('ann', 1)
  mock.timers.tick(23_999)
  t.strictSame(await plantsOf('ann'), [1])
  mock.timers.tick(1)
  await erased
  t.strictSame(printed.args(), [
    [`Erased ${counts(2501, 1)} of ann.`],
    [`Left: ${counts(0)} of ann. Backups and logs are not erased.`]
  ])
  t.strictSame([await plantsOf('ann'), await plantsOf('bob')], [[], [1]])
  t.strictSame((await tokens.list()).map(({ user }) => user), ['Zoë', 'bob'])
})

t.test('user erase names the identity provider, which can still issue tokens', async (t) => {
  const jwt = { DATABASE_URL: url, JWT_ISSUER: 'https://id.example', JWT_AUDIENCE: 'plants' }
  for (const [user, environment, ...last] of [
    ['https://id.example|42', jwt, 'The identity provider can still issue tokens for this user.'],
    ['https://id.example|42', undefined], ['a|b', jwt]
  ] as const) {
    await addPlants(user, 1)
    t.strictSame(await run(['user', 'erase', user, '--yes'], environment), succeeds(
      `Erased ${counts(1)} of ${user}.`,
      `Left: ${counts(0)} of ${user}. Backups and logs are not erased.`, ...last))
  }
})

t.test('user erase fails for a user without plants and tokens', async (t) => {
  t.strictSame(await run(['user', 'erase', 'an', '--yes']),
    fails(`There are no ${anyTable} of an. The command user list shows all users.`))
})

t.test('user erase fails while something still creates plants of the user', async (t) => {
  await addPlants('dan', 1)
  await sql(url, `create function create_again () returns trigger language plpgsql as $$ begin
      insert into plants (owner, id, name) values ('dan', 2, 'again') on conflict do nothing;
      return null;
    end $$;
    create trigger again after delete on plants for each statement execute function create_again ()`)
  t.teardown(() => sql(url, 'drop function create_again cascade'))
  t.match(await run(['user', 'erase', 'dan', '--yes']),
    { code: 1, stderr: `Something still creates ${anyTable} of dan. Erase again.\n` })
})

/** Opens a transaction with a plant of the user. */
const openWriter = (t: Test, user: string) => openSession(t, url, `
  set application_name = 'an operator';
  begin; insert into plants (owner, id, name) values ('${user}', 9, 'Fern')`)
const namesWriter = (user: string) => new RegExp('^Waiting for the transaction of an operator, ' +
  `process \\d+, since \\d{4}-\\d\\d-\\d\\dT[\\d:.]{12}Z: it may create data of ${user}\\.\n`)

/** Waits until \`user erase\` has looked for open transactions \`times\` times. */
async function looksForWriters (times: number): Promise<void> {
  const looks = new Set<number>()
  while (looks.size < times) {
    const [look] = await sql(url, `select query_start as time from pg_stat_activity where state = 'idle'
      and application_name = 'plant-store user' and datname = current_database() and query like '%pg_locks%'
      and backend_start > (select min(xact_start) from pg_stat_activity where datname = current_database())
      order by query_start desc limit 1`)
    if (look !== undefined) looks.add(Number(look.time))
    await nextTick()
  }
}

t.test('a command that changes data leaves a line in the log of the database', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  // The client then gets the lines of the server's log, too.
  await sql(DATABASE_URL, `alter database ${new URL(DATABASE_URL).pathname.slice(1)}
    set client_min_messages = log`)
  const emitted = t.capture(pg.Connection.prototype, 'emit', pg.Connection.prototype.emit)
  const lineOf = async (...args: string[]) => {
    emitted.args()
    const { code, stdout } = await run(args, { DATABASE_URL })
    t.equal(code, 0)
    const [line] = emitted.args().flatMap(([name, notice]) => name === 'notice' ? [notice?.message] : [])
    return { stdout, ...JSON.parse(line) }
  }
  const common = { level: 'info', time: /^\d{4}-.*Z$/, hostname: hostname() }
  const created = await lineOf('token', 'create', "O'Hara $$")
  const tokenId = hashToken(created.stdout.trim()).slice(0, 16)
  t.match(created, { ...common, command: 'token create', user: "O'Hara $$", tokenId })
  t.match(await lineOf('token', 'revoke', tokenId), { command: 'token revoke', tokenId, tokens: 1 })
  const file = join(t.testdir({ 'one.ndjson': '{"id":1,"name":"Fern"}' }), 'one.ndjson')
  t.match(await lineOf('import', 'ann', file),
    { command: 'import', user: 'ann', table: 'plants', result: '1 created, 0 existing, 0 rejected' })
  t.match(await lineOf('user', 'erase', 'ann', '--yes'), { command: 'user erase', user: 'ann', plants: 1 })

  await sql(DATABASE_URL, 'drop extension plpgsql')
  t.match(await run(['token', 'create', 'ann'], { DATABASE_URL }), {
    code: 0, stdout: /^plant_/, stderr: /^The log of the database has no line of this command. .*plpgsql.*\n$/
  })
})

t.test('user erase waits for imports, and imports of the user fail meanwhile', async (t) => {
  const folder = t.testdir({ 'plants.ndjson': '{"id":1,"name":"Fern"}\n', 'all.ndjson': '' })
  const importFile = (...words: string[]) => run(['import', ...words])
  const locks = `select from pg_locks where locktype = 'advisory' and database =
    (select oid from pg_database where datname = current_database()) and not granted`
  for (const [user, importer] of [['ivo', 'ivo'], ['jan', undefined]] as const) {
    await addPlants(user, 1)
    await using running = await lockForImport(url, importer)
    const erased = eraseUser(readConfig({ DATABASE_URL: url }), user, true)
    while ((await sql(url, locks)).length === 0) await nextTick()
    t.match(await importFile(user, join(folder, 'plants.ndjson')),
      { code: 1, stderr: `user erase of ${user} is running. Import after its end.\n` })
    // The erasure locks one after the other.
    t.match(await importFile('--all', join(folder, 'all.ndjson')), importer === undefined
      ? { code: 1, stderr: 'user erase is running. Import after its end.\n' }
      : { code: 0 })
    t.match(await importFile('other', join(folder, 'plants.ndjson')), { code: 0 })
    await running.check()
    await running[Symbol.asyncDispose]()
    await erased
    t.strictSame(await plantsOf(user), [])
  }
})

t.test('a command waits longer than a request for a connection, as on a loaded machine', async (t) => {
  const proxy = await openProxy(t, url)
  // Each of the five round trips of a new connection takes over a second.
  proxy.slow(600)
  const [listed] = await Promise.all([
    run(['token', 'list'], { DATABASE_URL: proxy.url }),
    openClient(proxy.url, {}).then((client) => client.end())
  ])
  t.match(listed, { code: 0 })
})

t.test('an import that loses its lock commits nothing', async (t) => {
  const lock = await lockForImport(url, 'kim')
  const end = `select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and database =
    (select oid from pg_database where datname = current_database())`
  await sql(url, end)
  await t.rejects(lock.check())
  await lock[Symbol.asyncDispose]()
})

t.test('user erase waits for open transactions, and fails if a token was created meanwhile', async (t) => {
  await addPlants('eve', 2)
  const operator = await openWriter(t, 'eve')
  const erased = run(['user', 'erase', 'eve', '--yes'])
  await looksForWriters(1)
  // This transaction begins later, so the erasure does not wait for its end.
  await openSession(t, url, "begin; insert into plants (owner, id, name) values ('bob', 2, 'Ivy')")
  await tokens.create({ user: 'eve', readOnly: false })
  await looksForWriters(3)
  await operator.query('commit')
  const { code, stdout, stderr } = await erased
  t.match(stderr, namesWriter('eve'))
  t.match(stderr, `\nSomething still creates ${anyTable} of eve. Erase again.\n`)
  t.match(stdout, `Erased ${counts(3)} of eve.\nLeft: ${counts(0, 1)} of eve.`)
  t.equal(code, 1)
  t.strictSame(await plantsOf('eve'), [])
  t.equal((await tokens.list('eve')).length, 1)
})

t.test('user erase finds the plants of a user who has only open transactions', async (t) => {
  const operator = await openWriter(t, 'hal')
  const erased = run(['user', 'erase', 'hal', '--yes'])
  await looksForWriters(3)
  await operator.query('commit')
  const { stderr, ...result } = await erased
  t.match(stderr, namesWriter('hal'))
  t.match(result, { code: 0, stdout: `Erased ${counts(1)} of hal.` })
  t.strictSame(await plantsOf('hal'), [])
})

t.test('user erase asks on a terminal', async (t) => {
  await addPlants('fay', 3)
  const question = `Erase ${counts(3)} of fay? [y/N] `
  const answer = (text: string) => {
    t.intercept(process, 'stdin', { value: Object.assign(new PassThrough().end(text), { isTTY: true }) })
    return run(['user', 'erase', 'fay'])
  }
  t.strictSame(await answer('\n'), fails(`${question}Nothing is erased.`))
  const terminal = t.intercept(process.stderr, 'isTTY', { value: true })
  t.match(await answer('\x03'), { code: 130, stderr: question })
  terminal.restore()
  t.strictSame(await plantsOf('fay'), [1, 2, 3])
  t.match(await answer('y\n'), { code: 0, stdout: `Erased ${counts(3)} of fay.`, stderr: question })
  t.strictSame(await plantsOf('fay'), [])
})
