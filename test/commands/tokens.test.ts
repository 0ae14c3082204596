import t from 'tap'
import { isUserName, listTokens, parseExpiry } from '../../src/commands/tokens.ts'
import { startApp } from '../support/app.ts'

const nextYear = new Date().getUTCFullYear() + 1

t.test('a token expires after a duration or at the start of a day, UTC', async (t) => {
  for (const [text, ms] of Object.entries({ '90d': 90 * 86_400_000, '12h': 43_200_000, '30s': 30_000, '5m': 300_000, '1ms': 1 })) {
    const before = Date.now()
    const expires = parseExpiry(text)?.getTime() as number
    t.ok(before + ms <= expires && expires <= Date.now() + ms, text)
  }
  t.strictSame(parseExpiry(`${nextYear}-01-01`), new Date(`${nextYear}-01-01T00:00:00.000Z`))
  t.strictSame(parseExpiry('9999-12-31'), new Date('9999-12-31T00:00:00.000Z'))
})

t.test('what is past, no day of the calendar or too far for PostgreSQL is no expiry', async (t) => {
  for (const text of ['', '0', '0s', '90', '90 d', '-1d', '1.5d', 'soon', 'd', '2020-01-01', new Date().toISOString().slice(0, 10),
    `${nextYear}-02-30`, `${nextYear}-13-01`, `${nextYear}-1-1`, `${nextYear}-01-01T00:00:00Z`, `01.01.${nextYear}`,
    '10000-01-01', '+010000-01-01', '9999999d']) {
    t.equal(parseExpiry(text), undefined, JSON.stringify(text))
  }
})

t.test('a user may have any name that can be shown in a line', async (t) => {
  for (const name of ['a', 'alice@example.org', 'Ada Lovelace', 'علي', '李', '🌵', 'x'.repeat(255), '🌵'.repeat(255)]) t.ok(isUserName(name))
  for (const name of ['', 'a\nb', 'a\tb', '\u0000', '\u001b[31m', '\u2028', '\u202e', '\ud800', 'x'.repeat(256)]) t.notOk(isUserName(name))
})

t.test('tokens are listed by age with their state, as a table or as JSON', async (t) => {
  const { tokens } = await startApp(t)
  const expires = new Date(Date.now() + 60_000)
  await tokens.create({ user: 'alice', readOnly: false })
  await tokens.create({ user: 'bob', label: 'laptop', readOnly: true, expires })
  await tokens.create({ user: 'alice', readOnly: false, expires: new Date(0) })
  await tokens.revoke({ id: (await tokens.list('alice'))[0]?.id as string })

  const rows = JSON.parse(await listTokens(tokens, undefined, true))
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
  t.equal(await listTokens(tokens, undefined, false), [
    'ID                USER   LABEL   ACCESS     CREATED                   EXPIRES                   STATE',
    `${first.id}  alice          full       ${first.created}  never                     revoked`,
    `${second.id}  bob    laptop  read-only  ${second.created}  ${second.expires}  active`,
    `${third.id}  alice          full       ${third.created}  ${third.expires}  expired`
  ].join('\n'))

  t.strictSame(JSON.parse(await listTokens(tokens, 'bob', true)), [second])
  t.equal(await listTokens(tokens, 'nobody', false), 'ID  USER  LABEL  ACCESS  CREATED  EXPIRES  STATE')
  t.equal(await listTokens(tokens, 'nobody', true), '[]')
})
