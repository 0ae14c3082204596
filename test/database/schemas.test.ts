// Tests migrations in schemas other than public.
import { randomBytes } from 'node:crypto'
import t from 'tap'
import { migrate, UnsupportedServer } from '../../src/database/migrate.ts'
import { tableNames } from '../../src/domains.ts'
import { createDatabase, sql } from '../support/database.ts'
import { migrations } from '../support/migrations.ts'

const url = await createDatabase(t, { template: 'template0' })
const inPath = (...schemas: string[]) => `${url}?options=${encodeURIComponent(`-c search_path=${schemas}`)}`
const tablesIn = async (schema: string) =>
  (await sql(url, 'select tablename from pg_tables where schemaname = $1 order by 1', [schema]))
    .map(({ tablename }) => tablename)
const all = ['migrations', ...tableNames].sort()

t.test('each schema gets tables of its own', async (t) => {
  await sql(url, 'create schema "Garden"')
  for (const [schema, target] of [['public', url], ['Garden', inPath('"Garden"')]] as const) {
    t.strictSame(await tablesIn(schema), [])
    t.strictSame(await migrate(target), migrations)
    t.strictSame(await tablesIn(schema), all)
    t.strictSame(await migrate(target), [], 'a second run has nothing to do')
  }
})

t.test('a schema with a quote in its name is rejected', async (t) => {
  for (const name of ["O'Hara", 'a"b']) {
    const quoted = `"${name.replace('"', '""')}"`
    await sql(url, `create schema ${quoted}`)
    await t.rejects(migrate(inPath(quoted)),
      { message: `The schema ${name} has a quote in its name. Rename it.` })
    t.strictSame(await tablesIn(name), [])
  }
})

t.test('a missing earlier migration is named', async (t) => {
  await sql(url, 'create schema gap')
  const target = inPath('gap')
  await migrate(target)
  await sql(url, "delete from gap.migrations where name = '0002_tokens'")
  await t.rejects(migrate(target), { message: /^Not run migration 0002_tokens is preceding already run/ })
})

t.test('tables in a later schema of search_path are not hidden by new tables', async (t) => {
  await sql(url, 'create schema empty; create table empty.other ()')
  const error = await migrate(inPath('nowhere', 'empty', 'public')).catch((error) => error)
  t.type(error, UnsupportedServer)
  t.equal(error.message, 'The tables are in the schema public, but search_path begins with empty. ' +
    'Set search_path to one of the two.')
  t.strictSame(await tablesIn('empty'), ['other'])
  await t.rejects(migrate(inPath('nowhere')), { message: 'No schema of search_path exists. Create one.' })
  // The table of another program may have the same name.
  await sql(url, 'create schema theirs; create table theirs.migrations (name text)')
  t.strictSame(await migrate(inPath('empty', 'theirs')), migrations)
  t.strictSame(await tablesIn('empty'), [...all, 'other'].sort())
})

t.test('a role that may create tables only in its own schema migrates only there', async (t) => {
  const role = `limited_${randomBytes(4).toString('hex')}`
  await sql(url, `create role ${role} login password 'secret'; create schema ${role} authorization ${role}`)
  t.teardown(() => sql(url, `drop owned by ${role}; drop role ${role}`))
  await sql(url, `drop table ${all.join()}`)
  const limited = Object.assign(new URL(url), { username: role, password: 'secret' }).href
  t.strictSame(await migrate(limited), migrations)
  t.strictSame([await tablesIn(role), await tablesIn('public')], [all, []])
  await t.rejects(migrate(`${limited}?options=-c%20search_path%3Dpublic`),
    { code: '42501', message: 'permission denied for schema public' })
})
