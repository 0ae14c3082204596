import { cp, rm, symlink, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { migrate } from '../../../src/database/migrate.ts'
import { createDatabase, openSession, sql, waitingForLocks } from '../../support/database.ts'
import { matchEach } from '../../support/match.ts'
import { migrations } from '../../support/migrations.ts'
import { unmeasured } from '../../support/program.ts'

const root = join(import.meta.dirname, '../../..')
const createEmpty = (t: Test) => createDatabase(t, { template: 'template0' })
const tablesOf = async (url: string) => {
  const rows = await sql(url, "select tablename from pg_tables where schemaname = 'public' order by 1")
  return rows.map(({ tablename }) => tablename)
}
/** Polls. On a busy machine a probe of the database may time out. */
const untilReady = async ({ address }: { address: string }) => {
  while ((await fetch(`${address}/readyz`)).status !== 200);
}

t.test('migrate down undoes what migrate created', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const down = () => unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL })
  await migrate(DATABASE_URL, 'up')
  const tables = await tablesOf(DATABASE_URL)
  for (const name of migrations.toReversed()) {
    t.strictSame(await down(), { code: 0, stdout: `down ${name}\n`, stderr: '' })
  }
  t.strictSame(await down(), { code: 0, stdout: 'nothing to do\n', stderr: '' })
  t.strictSame(await tablesOf(DATABASE_URL), ['migrations'])
  await migrate(DATABASE_URL, 'up')
  t.strictSame(await tablesOf(DATABASE_URL), tables)
})

t.test('a migration has a time limit of its own, not the limit of the role', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, `
    create table noted (timeout text);
    create function note () returns event_trigger language plpgsql as
      $$ begin insert into noted values (current_setting('statement_timeout')); end $$;
    create event trigger note on ddl_command_end execute function note();
    do $$ begin
      execute format('alter database %I set statement_timeout = ''3s''', current_database());
    end $$`)
  await migrate(DATABASE_URL, 'up')
  t.strictSame(await sql(DATABASE_URL, 'select distinct timeout from noted'), [{ timeout: '10min' }])
})

t.test('migrate down finds the tables that lose data', async (t) => {
  const folder = t.testdir()
  const copied = ['package.json', 'migrations', 'src']
  await Promise.all(copied.map((name) => cp(join(root, name), join(folder, name), { recursive: true })))
  await symlink(join(root, 'node_modules'), join(folder, 'node_modules'))
  const copy: typeof import('../../../src/database/migrate.ts') =
    await import(join(folder, 'src/database/migrate.ts'))
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL, "insert into plants (owner, id, name) values ('alice', 1, 'Monstera')")
  const up = `alter table plants add note text;
    create index plants_note on plants (note); create table notes (note text);`
  const downSections: Array<[down: string, losesData: boolean]> = [
    ['do $$ begin alter table plants drop column note; drop table notes; end $$;', true],
    ['Alter  Table\n  only plants alter note type bigint using 0; drop table notes;', true],
    ['alter table plants add check (note is null); drop table notes;', false]
  ]
  for (const [index, [down, losesData]] of downSections.entries()) {
    const name = `900${index}_note`
    const migration = `-- Up Migration\n\n${up}\n\n-- Down Migration\n\n${down}\n`
    await writeFile(join(folder, `migrations/${name}.sql`), migration)
    t.strictSame(await copy.migrate(DATABASE_URL, 'up'), [name])
    if (losesData) {
      const message = `Undoing ${name} would delete data from plants. Add --with-data to allow that.`
      await t.rejects(copy.migrate(DATABASE_URL, 'down'), { message })
    }
    t.strictSame(await copy.migrate(DATABASE_URL, 'down', losesData), [name])
    await rm(join(folder, `migrations/${name}.sql`))
    await sql(DATABASE_URL, 'alter table plants drop column if exists note')
  }
})

t.test('migrate down sees rows of transactions that end while it waits', async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const other = await openSession(t, DATABASE_URL)
  while ((await sql(DATABASE_URL, 'select from migrations')).length > 2) await migrate(DATABASE_URL, 'down')
  await other.query('begin')
  await other.query('insert into tokens (hash, username) values (sha256(\'\'), \'alice\')')
  const refused = t.rejects(migrate(DATABASE_URL, 'down'), /delete data from tokens/)
  while ((await sql(DATABASE_URL, waitingForLocks)).length === 0) await setTimeout(10)
  await other.query('commit')
  await refused
  t.equal((await sql(DATABASE_URL, 'select from tokens')).length, 1)
})

t.test('migrations run all or not at all, and a failure does not block the next attempt', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, 'create table tokens ()')
  const stderr = 'relation "tokens" already exists\n'
  t.strictSame(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 1, stdout: '', stderr })
  t.strictSame(await tablesOf(DATABASE_URL), ['migrations', 'tokens'], 'no plants')

  await sql(DATABASE_URL, 'drop table tokens')
  t.strictSame(await migrate(DATABASE_URL, 'up'), migrations)
})

t.test('when several instances start on an empty database, one migrates and all serve', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const services = await Promise.all(Array.from({ length: 3 }, () => unmeasured.serve(t, { DATABASE_URL })))
  const migrated = services.flatMap(({ log }) => log.filter(({ msg }) => msg === 'migrated'))
  matchEach(t, migrated, [{ migrations }])
  await Promise.all(services.map(untilReady))
})

t.test('with MIGRATE=off the service waits until the command migrate has run', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const environment = { DATABASE_URL, MIGRATE: 'off' }
  const service = await unmeasured.serve(t, environment, 'the database is not ready')
  t.equal((await fetch(`${service.address}/readyz`)).status, 503)
  t.strictSame(await tablesOf(DATABASE_URL), [])

  t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 0, stderr: '' })
  await service.logged('ready')
  await untilReady(service)
})

t.test('migrate waits for another migration and reports a lost connection in one line', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const other = await openSession(t, DATABASE_URL)
  // Take the advisory lock that node-pg-migrate holds during a migration.
  await other.query('select pg_advisory_lock(7241865325823964)')
  const waiting = unmeasured.run(['migrate'], { DATABASE_URL })
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await other.query(end)).rowCount === 0) await setTimeout(10)
  const stderr = 'terminating connection due to administrator command\n'
  t.strictSame(await waiting, { code: 1, stdout: '', stderr })
  t.strictSame(await tablesOf(DATABASE_URL), [])
})
