import t from 'tap'
import { expiry, label, userName } from '../../src/commands/arguments.ts'

const nextYear = new Date().getUTCFullYear() + 1

t.test('an expiry is a duration, a day (its start in UTC) or a time as token list shows it', async (t) => {
  for (const [text, ms] of Object.entries({
    '90d': 90 * 86_400_000, '12h': 43_200_000, '30s': 30_000, '5m': 300_000, '1ms': 1
  })) {
    const before = Date.now()
    const expires = expiry(text).getTime()
    t.ok(before + ms <= expires && expires <= Date.now() + ms, text)
  }
  for (const [text, moment] of Object.entries({
    [`${nextYear}-01-01`]: `${nextYear}-01-01T00:00:00.000Z`,
    '9999-12-31': '9999-12-31T00:00:00.000Z',
    [`${nextYear}-02-03T04:05:06.789Z`]: `${nextYear}-02-03T04:05:06.789Z`
  })) t.strictSame(expiry(text), new Date(moment))
})

t.test('an expiry is in the future, a day of the calendar and before the year 10000', async (t) => {
  const message = 'Expected a duration such as 90d, 12h or 30s, or a future date such as 2027-01-01.'
  for (const text of [
    '', '0', '0s', '90', '90 d', '-1d', '1.5d', 'soon', 'd', '2020-01-01', new Date().toISOString(),
    new Date().toISOString().slice(0, 10), `${nextYear}-02-30`, `${nextYear}-13-01`, `${nextYear}-1-1`,
    `${nextYear}-01-01T00:00:00Z`, `${nextYear}-02-30T00:00:00.000Z`, `${nextYear}-01-01T00:00:00.000+01:00`,
    `01.01.${nextYear}`, '10000-01-01', '+010000-01-01', '9999999d'
  ]) {
    t.throws(() => expiry(text), { message }, JSON.stringify(text))
  }
})

t.test('users and labels consist of 1 to 255 printable characters', async (t) => {
  const names = [
    'a', 'alice@example.org', 'Ada Lovelace', 'علي', '李', '🌵', 'x'.repeat(255), '🌵'.repeat(255)
  ]
  for (const name of names) t.strictSame([userName(name), label(name)], [name, name])
  for (const name of [
    '', 'a\nb', 'a\tb', '\u0000', '\u001b[31m', '\u2028', '\u202e', '\ud800', 'x'.repeat(256)
  ]) {
    t.throws(() => userName(name), { message: 'A user name is 1 to 255 printable characters.' })
    t.throws(() => label(name), { message: 'A label is 1 to 255 printable characters.' })
  }
})
