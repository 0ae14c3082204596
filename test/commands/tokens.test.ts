import t from 'tap'
import { startApp } from '../support/app.ts'
import { createDatabase, sql } from '../support/database.ts'
import { run, unmeasured } from '../support/program.ts'

const DATABASE_URL = await createDatabase(t)
const token = (...args: string[]) => run(['token', ...args], { DATABASE_URL })
// Like `token`, but faster: without coverage. Calls of `token` cover the same lines.
const again = (...args: string[]) => unmeasured.run(['token', ...args], { DATABASE_URL })
const says = (stdout: string) => ({ code: 0, stdout: `${stdout}\n`, stderr: '' })
const rejects = (stderr: string) => ({ code: 1, stdout: '', stderr: `${stderr}\n` })

t.jobs = 4

t.test('a token is created, listed and revoked', { buffered: true }, async (t) => {
  const created = await again('create', 'alice', '--expires', '90d', '--label', 'laptop', '--read-only')
  t.strictSame(created, { code: 0, stdout: created.stdout, stderr: '' })
  t.match(created.stdout, /^plant_[0-9a-z]{57}\n$/, 'the token and nothing else')

  const json = await again('list', '--user', 'alice', '--json')
  t.match(json, { code: 0, stderr: '' })
  const [{ id, created: at, expires }] = JSON.parse(json.stdout)
  t.match(JSON.parse(json.stdout), [{ user: 'alice', label: 'laptop', access: 'read-only', state: 'active' }])
  t.equal(Math.round((Date.parse(expires) - Date.parse(at)) / 86_400_000), 90)

  t.strictSame(await token('revoke', id), says('revoked 1'))
  t.match(JSON.parse((await again('list', '--user', 'alice', '--json')).stdout), [{ id, state: 'revoked' }])
  t.strictSame(await token('revoke', id), says('already revoked'))
})

t.test('revoke --user revokes all tokens of that user and no others', { buffered: true }, async (t) => {
  const { tokens } = await startApp(t, { DATABASE_URL })
  await Promise.all(['carol', 'carol', 'dave'].map((user) => tokens.create({ user, readOnly: false })))
  t.strictSame(await again('revoke', '--user', 'carol'), says('revoked 2'))
  const states = async (user: string) => (await tokens.list(user)).map(({ revoked }) => revoked !== undefined)
  t.strictSame([await states('carol'), await states('dave')], [[true, true], [false]])
  t.strictSame(await again('revoke', '--user', 'carol'), says('already revoked'))
})

t.test('revoking an unknown token fails', { buffered: true }, async (t) => {
  t.strictSame(await token('revoke', '0123456789abcdef'),
    rejects('There is no token with the id 0123456789abcdef. The command token list shows all tokens.'))
  t.strictSame(await token('revoke', '--user', 'nobody'),
    rejects('There is no token of the user nobody. The command token list shows all tokens.'))
})

t.test('token list shows tokens by age with their state', { buffered: true }, async (t) => {
  const { tokens, url } = await startApp(t)
  const list = async (...args: string[]) =>
    (await unmeasured.run(['token', 'list', ...args], { DATABASE_URL: url })).stdout.trimEnd()
  const expires = new Date(Date.now() + 60_000)
  await tokens.create({ user: 'alice', readOnly: false })
  await tokens.create({ user: 'bob', label: 'laptop', readOnly: true, expires })
  await tokens.create({ user: 'alice', readOnly: false, expires: new Date(0) })
  await tokens.revoke({ id: (await tokens.list('alice'))[0]?.id as string })

  const rows = JSON.parse(await list('--json'))
  t.match(rows, [
    { user: 'alice', label: '', access: 'full', expires: 'never', state: 'revoked' },
    { user: 'bob', label: 'laptop', access: 'read-only', expires: expires.toISOString(), state: 'active' },
    { user: 'alice', label: '', access: 'full', expires: '1970-01-01T00:00:00.000Z', state: 'expired' }
  ])
  for (const row of rows) {
    t.strictSame(Object.keys(row), ['id', 'user', 'label', 'access', 'created', 'expires', 'state'])
    t.match(row.id, /^[0-9a-f]{16}$/)
    t.equal(new Date(row.created).toISOString(), row.created)
  }
  const [first, second, third] = rows
  t.equal((await run(['token', 'list'], { DATABASE_URL: url })).stdout.trimEnd(), [
    'ID                USER   LABEL   ACCESS     CREATED                   EXPIRES                   STATE',
    `${first.id}  alice          full       ${first.created}  never                     revoked`,
    `${second.id}  bob    laptop  read-only  ${second.created}  ${second.expires}  active`,
    `${third.id}  alice          full       ${third.created}  ${third.expires}  expired`
  ].join('\n'))

  t.strictSame(JSON.parse(await list('--user', 'bob', '--json')), [second])
  t.equal(await list('--user', 'nobody'), 'ID  USER  LABEL  ACCESS  CREATED  EXPIRES  STATE')
})

t.test('token commands create no tables', { buffered: true }, async (t) => {
  const DATABASE_URL = await createDatabase(t, { template: 'template0' })
  for (const words of [['create', 'alice'], ['list'], ['revoke', '--user', 'alice']]) {
    const expected = rejects('relation "tokens" does not exist. ' +
      'Create the tables first: start the service, or run plant-store migrate.')
    t.strictSame(await unmeasured.run(['token', ...words], { DATABASE_URL }), expected, words.join(' '))
  }
  t.strictSame(await sql(DATABASE_URL, 'select tablename from pg_tables where schemaname = \'public\''), [])
})
