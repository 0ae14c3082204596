import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createDatabase, sql, waitingForLocks } from '../../support/database.ts'
import { migrations } from '../../support/migrations.ts'
import { copyProgram, run, unmeasured } from '../../support/program.ts'

const test = (title: string, run: (t: Test) => Promise<void>) => t.test(title, { buffered: true }, run)
const createEmpty = (t: Test) => createDatabase(t, { template: 'template0' })
const tablesOf = async (url: string) => {
  const rows = await sql(url, "select tablename from pg_tables where schemaname = 'public' order by 1")
  return rows.map(({ tablename }) => tablename)
}

t.jobs = 3

test('migrate goes up to the newest migration, and down by one migration', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const migrate = (...args: string[]) => run(['migrate', ...args], { DATABASE_URL })
  // Like `migrate`, but without coverage. The call of `migrate` covers the same lines.
  const again = (...args: string[]) => unmeasured.run(['migrate', ...args], { DATABASE_URL })
  const prints = (direction: string, names: string[]) => {
    const stdout = names.map((name) => `${direction} ${name}\n`).join('') || 'nothing to do\n'
    return { code: 0, stdout, stderr: '' }
  }

  t.strictSame(await again(), prints('up', migrations))
  t.strictSame(await again('up'), prints('up', []))
  const tables = await tablesOf(DATABASE_URL)
  t.ok(tables.includes('plants') && tables.includes('tokens'))
  const [newest = '', ...older] = migrations.toReversed()
  t.strictSame(await again('down', '--yes'), prints('down', [newest]))
  for (const name of older) t.strictSame(await again('down', '--yes'), prints('down', [name]))
  t.strictSame(await migrate('down', '--yes'), prints('down', []))
  t.strictSame(await tablesOf(DATABASE_URL), ['migrations'])
  t.strictSame(await again(), prints('up', migrations))
  t.strictSame(await tablesOf(DATABASE_URL), tables)
})

test('a migration has a time limit of its own, not the limit of the role', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, `
    create table noted (timeout text);
    create function note () returns event_trigger language plpgsql as
      $$ begin insert into noted values (current_setting('statement_timeout')); end $$;
    create event trigger note on ddl_command_end execute function note();
    do $$ begin
      execute format('alter database %I set statement_timeout = ''3s''', current_database());
    end $$`)
  t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 0 })
  t.strictSame(await sql(DATABASE_URL, 'select distinct timeout from noted'), [{ timeout: '10min' }])
})

test('migrate down deletes no data without --with-data', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const down = (...args: string[]) => unmeasured.run(['migrate', 'down', '--yes', ...args], { DATABASE_URL })
  const rejects = (migration: string, table: string) => ({
    code: 1,
    stdout: '',
    stderr: `Undoing ${migration} would delete data from ${table}. Add --with-data to allow that.\n`
  })
  // Undo all migrations except the first two, which create the tables.
  for (let newer = migrations.length; newer > 2; newer--) await down()
  await sql(DATABASE_URL, 'insert into plants (owner, id, name) values (\'alice\', 1, \'Monstera\')')
  await sql(DATABASE_URL, 'insert into tokens (hash, username) values (sha256(\'\'), \'alice\')')

  t.strictSame(await run(['migrate', 'down', '--yes'], { DATABASE_URL }), rejects('0002_tokens', 'tokens'))
  t.equal((await sql(DATABASE_URL, 'select from tokens')).length, 1)
  t.match(await down('--with-data'), { code: 0, stdout: 'down 0002_tokens\n' })
  t.strictSame(await down(), rejects('0001_plants', 'plants'))
  t.equal((await sql(DATABASE_URL, 'select from plants')).length, 1)
  t.match(await down('--with-data'), { code: 0, stdout: 'down 0001_plants\n' })
})

const downSections: Array<[down: string, table: string | undefined]> = [
  ['do $$ begin alter table plants drop column note; end $$;', 'plants'],
  ['Alter  Table\n  only plants alter note type bigint using 0;', 'plants'],
  ['drop table if exists public.plants cascade;', 'plants'],
  ['drop index plants_note;', undefined],
  ['alter table plants add check (note is null); drop table notes;', undefined]
]
for (const [down, table] of downSections) {
  test(`migrate down finds the tables that lose data by ${JSON.stringify(down)}`, async (t) => {
    const folder = t.testdir()
    const { run } = await copyProgram(folder)
    const DATABASE_URL = await createDatabase(t)
    const up = `alter table plants add note text;
      create index plants_note on plants (note); create table notes (note text);`
    const migration = `-- Up Migration\n\n${up}\n\n-- Down Migration\n\n${down}\n`
    await writeFile(join(folder, 'migrations/9000_note.sql'), migration)
    t.match(await run(['migrate'], { DATABASE_URL }), { code: 0, stdout: 'up 9000_note\n' })
    await sql(DATABASE_URL, "insert into plants (owner, id, name) values ('alice', 1, 'Monstera')")
    const stderr = `Undoing 9000_note would delete data from ${table}. Add --with-data to allow that.\n`
    t.strictSame(await run(['migrate', 'down', '--yes'], { DATABASE_URL }), table === undefined
      ? { code: 0, stdout: 'down 9000_note\n', stderr: '' }
      : { code: 1, stdout: '', stderr })
  })
}

test('migrate down sees rows of transactions that end while it waits', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  for (let newer = migrations.length; newer > 2; newer--) {
    await unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL })
  }
  const other = new pg.Client(DATABASE_URL)
  await other.connect()
  t.teardown(() => other.end())
  await other.query('begin')
  await other.query('insert into tokens (hash, username) values (sha256(\'\'), \'alice\')')
  const down = unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL })
  while ((await sql(DATABASE_URL, waitingForLocks)).length === 0) await setTimeout(10)
  await other.query('commit')
  t.match(await down, { code: 1, stderr: /delete data from tokens/ })
  t.equal((await sql(DATABASE_URL, 'select from tokens')).length, 1)
})

test('an older version does not undo a migration of a newer one', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL, 'insert into migrations (name, run_on) values (\'9999_later\', now())')
  t.match(await unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL }),
    { code: 1, stdout: '', stderr: /^Definitions of migrations 9999_later have been deleted\.\n$/ })
})

test('migrations run all or not at all, and a failure does not block the next attempt', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, 'create table tokens ()')
  const stderr = 'relation "tokens" already exists\n'
  t.strictSame(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 1, stdout: '', stderr })
  t.strictSame(await tablesOf(DATABASE_URL), ['migrations', 'tokens'], 'no plants')

  await sql(DATABASE_URL, 'drop table tokens')
  t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 0 })
})

test('when several instances start on an empty database, one migrates and all serve', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const services = await Promise.all(Array.from({ length: 3 }, () => unmeasured.serve(t, { DATABASE_URL })))
  const migrated = services.flatMap(({ log }) => log.filter(({ msg }) => msg === 'migrated'))
  t.match(migrated, [{ migrations }])
  t.equal(migrated.length, 1)
  for (const { address } of services) t.equal((await fetch(`${address}/readyz`)).status, 200)
})

test('with MIGRATE=off the service waits until the command migrate has run', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const environment = { DATABASE_URL, MIGRATE: 'off', DRAIN_DELAY: '0' }
  const service = await unmeasured.serve(t, environment, 'the database is not ready')
  t.equal((await fetch(`${service.address}/readyz`)).status, 503)
  t.strictSame(await tablesOf(DATABASE_URL), [])

  t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 0, stderr: '' })
  await service.logged('ready')
  t.equal((await fetch(`${service.address}/readyz`)).status, 200)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
})

test('migrate waits for another migration and reports a lost connection in one line', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const other = new pg.Client(DATABASE_URL)
  await other.connect()
  t.teardown(() => other.end())
  // Take the advisory lock that node-pg-migrate holds during a migration.
  await other.query('select pg_advisory_lock(7241865325823964)')
  const waiting = unmeasured.run(['migrate'], { DATABASE_URL })
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await other.query(end)).rowCount === 0) await setTimeout(10)
  const stderr = 'terminating connection due to administrator command\n'
  t.strictSame(await waiting, { code: 1, stdout: '', stderr })
  t.strictSame(await tablesOf(DATABASE_URL), [])
})
