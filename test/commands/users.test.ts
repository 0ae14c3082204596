import t, { type Test } from 'tap'
import { eraseUser, listUsers } from '../../src/commands/users.ts'
import { readConfig } from '../../src/config.ts'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'
import { run } from '../support/program.ts'
import { onTerminal } from '../support/transfer.ts'

/** Ann has 2,500 plants, and bob has one plant. Each user has one token. */
async function startStore (t: Test) {
  const { url, as, tokens } = await startApp(t)
  const config = readConfig({ DATABASE_URL: url, TOKEN_CACHE_TTL: '0' })
  await sql(url, "insert into plants (owner, id, name) select 'ann', id, '' from generate_series(1, 2500) id")
  await tokens.create({ user: 'ann', readOnly: true })
  const bob = await as('bob')
  await bob.create({ id: 1, name: 'Fern' })
  return { url, as, tokens, config, bob }
}

async function printed (t: Test, work: () => Promise<void>): Promise<string[]> {
  const results = t.capture(console, 'log')
  await work()
  return results().flatMap(({ args }) => String(args[0]).split('\n'))
}

t.test('user list counts the plants and tokens of each user', async (t) => {
  const { url, tokens, config } = await startStore(t)
  await tokens.create({ user: 'Zoë', readOnly: false })
  await sql(url, `update tokens set created_at = '2026-01-01', revoked_at = '2026-02-03 04:05:06+00'
    where username = 'Zoë'`)
  const [bob] = await sql(url, "select created_at from plants where owner = 'bob'")
  const [ann] = await sql(url, "select created_at from tokens where username = 'ann'")
  const time = (row: Record<string, unknown> | undefined) => (row?.created_at as Date).toISOString()
  t.strictSame(await printed(t, () => listUsers(config)), [
    'USER  PLANTS  TOKENS  NEWEST CHANGE',
    'Zoë   0       1       2026-02-03T04:05:06.000Z',
    `ann   2500    1       ${time(ann)}`,
    `bob   1       1       ${time(bob)}`
  ])
})

t.test('user erase deletes all plants and tokens of a user and nothing else', async (t) => {
  const { url, as, config, bob } = await startStore(t)
  const ann = await as('ann')
  t.strictSame(await printed(t, () => eraseUser(config, 'ann', true)), [
    'Erased 2500 plants and 2 tokens of ann.',
    'Left: 0 plants and 0 tokens of ann. Backups and logs are not erased.'
  ])
  t.equal((await ann.list()).statusCode, 401)
  t.strictSame((await bob.list()).json(), [{ name: 'Fern' }])
  t.strictSame(await sql(url, 'select username from tokens'), [{ username: 'bob' }])
  const withJwts = { ...config, JWT_ISSUER: 'https://id.example' }
  t.match(await printed(t, () => eraseUser(withJwts, 'https://id.example|42', true)), [
    'Erased 0 plants and 0 tokens of https://id.example|42.', /^Left: 0 plants/,
    'The identity provider can still issue tokens for this user.'
  ])
  t.equal((await printed(t, () => eraseUser(config, 'a|b', true))).length, 2)
})

t.test('user erase also deletes what an instance creates before it notices the revocation', async (t) => {
  const { url, config } = await startStore(t)
  // The trigger creates one plant as soon as ann has no plants. The sequence prevents a second plant.
  await sql(url, `create sequence late;
    create function create_late () returns trigger language plpgsql as $$ begin
      if not exists (select from plants where owner = 'ann') and nextval('late') = 1 then
        insert into plants (owner, id, name) values ('ann', 9999, 'late');
      end if;
      return null;
    end $$;
    create trigger late after delete on plants for each statement execute function create_late ()`)
  await printed(t, () => eraseUser(config, 'ann', true))
  t.strictSame(await sql(url, "select id from plants where owner = 'ann'"), [])
  t.strictSame(await sql(url, 'select is_called from late'), [{ is_called: true }], 'there was such a plant')
})

t.test('user erase asks on a terminal, and needs --yes elsewhere', async (t) => {
  const { url } = await startStore(t)
  const environment = { DATABASE_URL: url, TOKEN_CACHE_TTL: '0' }
  const question = 'Erase 2500 plants and 1 tokens of ann? [y/N] '
  const no = await onTerminal(['user', 'erase', 'ann'], environment, { question, answer: '\n' })
  t.match(no, { code: 1, shown: /Nothing is erased\.\r\n$/ })
  t.equal((await sql(url, 'select count(*)::int from plants'))[0]?.count, 2501)
  const yes = await onTerminal(['user', 'erase', 'ann'], environment, { question, answer: 'y\n' })
  t.match(yes, { code: 0, shown: /Erased 2500 plants and 1 tokens of ann\./ })
  t.equal((await sql(url, 'select count(*)::int from plants'))[0]?.count, 1)
  t.strictSame(await run(['user', 'erase', 'bob'], environment), {
    code: 2,
    stdout: '',
    stderr: 'error: user erase deletes all plants and tokens of bob. Add --yes to confirm.\n'
  })
})
