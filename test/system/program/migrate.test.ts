import { setTimeout } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { createDatabase, sql, waitingForLocks } from '../../support/database.ts'
import { migrations } from '../../support/migrations.ts'
import { run, unmeasured } from '../../support/program.ts'

const createEmpty = (t: Test) => createDatabase(t, { template: 'template0' })
const tablesOf = async (url: string) =>
  (await sql(url, 'select tablename as name from pg_tables where schemaname = \'public\' order by 1')).map(({ name }) => name)

t.jobs = 3

t.test('migrate goes up to the newest migration and down one at a time', { buffered: true }, async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const migrate = (...args: string[]) => run(['migrate', ...args], { DATABASE_URL })
  // Where no line is run that was not before.
  const again = (...args: string[]) => unmeasured.run(['migrate', ...args], { DATABASE_URL })
  const prints = (direction: string, names: string[]) =>
    ({ code: 0, stdout: names.map((name) => `${direction} ${name}\n`).join('') || 'nothing to do\n', stderr: '' })

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

t.test('a migration has its own limit of time, whatever the role has for requests', { buffered: true }, async (t) => {
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

t.test('migrate down refuses to lose rows unless told to', { buffered: true }, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  const down = (...args: string[]) => unmeasured.run(['migrate', 'down', '--yes', ...args], { DATABASE_URL })
  const refuses = (migration: string, table: string) => ({
    code: 1,
    stdout: '',
    stderr: `to take back ${migration} would lose what is in ${table}, see --with-data\n`
  })
  // What came after the tables.
  for (let newer = migrations.length; newer > 2; newer--) await down()
  await sql(DATABASE_URL, 'insert into plants (owner, id, name) values (\'alice\', 1, \'Monstera\')')
  await sql(DATABASE_URL, 'insert into tokens (hash, username) values (sha256(\'\'), \'alice\')')

  t.strictSame(await run(['migrate', 'down', '--yes'], { DATABASE_URL }), refuses('0002_tokens', 'tokens'))
  t.equal((await sql(DATABASE_URL, 'select from tokens')).length, 1)
  t.match(await down('--with-data'), { code: 0, stdout: 'down 0002_tokens\n' })
  t.strictSame(await down(), refuses('0001_plants', 'plants'))
  t.equal((await sql(DATABASE_URL, 'select from plants')).length, 1)
  t.match(await down('--with-data'), { code: 0, stdout: 'down 0001_plants\n' })
})

t.test('nobody adds a row while migrate down finds out that there is none', { buffered: true }, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  for (let newer = migrations.length; newer > 2; newer--) await unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL })
  const other = new pg.Client(DATABASE_URL)
  await other.connect()
  t.teardown(() => other.end())
  await other.query('begin')
  await other.query('insert into tokens (hash, username) values (sha256(\'\'), \'alice\')')
  const down = unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL })
  while ((await sql(DATABASE_URL, waitingForLocks)).length === 0) await setTimeout(10)
  await other.query('commit')
  t.match(await down, { code: 1, stderr: /lose what is in tokens/ })
  t.equal((await sql(DATABASE_URL, 'select from tokens')).length, 1)
})

t.test('a migration of a newer version is not taken back by an older one', { buffered: true }, async (t) => {
  const DATABASE_URL = await createDatabase(t)
  await sql(DATABASE_URL, 'insert into migrations (name, run_on) values (\'9999_later\', now())')
  t.match(await unmeasured.run(['migrate', 'down', '--yes'], { DATABASE_URL }),
    { code: 1, stdout: '', stderr: /^Definitions of migrations 9999_later have been deleted\.\n$/ })
})

t.test('migrations are run all or not at all, and a failure does not block the next attempt', { buffered: true }, async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, 'create table tokens ()')
  const { code, stdout, stderr } = await unmeasured.run(['migrate'], { DATABASE_URL })
  t.strictSame({ code, stdout, stderr }, { code: 1, stdout: '', stderr: 'relation "tokens" already exists\n' })
  t.strictSame(await tablesOf(DATABASE_URL), ['migrations', 'tokens'], 'no plants')

  await sql(DATABASE_URL, 'drop table tokens')
  t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 0 })
})

t.test('of several started at once on an empty database one migrates, and all serve', { buffered: true }, async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const services = await Promise.all(Array.from({ length: 3 }, () => unmeasured.serve(t, { DATABASE_URL })))
  const migrated = services.flatMap(({ log }) => log.filter(({ msg }) => msg === 'migrated'))
  t.match(migrated, [{ migrations }])
  t.equal(migrated.length, 1)
  for (const { address } of services) t.equal((await fetch(`${address}/readyz`)).status, 200)
})

t.test('with MIGRATE=off the service waits until somebody else has migrated', { buffered: true }, async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const service = await unmeasured.serve(t, { DATABASE_URL, MIGRATE: 'off', DRAIN_DELAY: '0' }, 'the database is not ready')
  t.equal((await fetch(`${service.address}/readyz`)).status, 503)
  t.strictSame(await tablesOf(DATABASE_URL), [])

  t.match(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 0, stderr: '' })
  await service.logged('ready')
  t.equal((await fetch(`${service.address}/readyz`)).status, 200)
  service.child.kill('SIGTERM')
  t.strictSame(await service.exited, [0, null])
})

t.test('whoever migrates waits for another who does, and says in one line that it lost its connection meanwhile', { buffered: true }, async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const other = new pg.Client(DATABASE_URL)
  await other.connect()
  t.teardown(() => other.end())
  // The key by which node-pg-migrate keeps others out.
  await other.query('select pg_advisory_lock(7241865325823964)')
  const waiting = unmeasured.run(['migrate'], { DATABASE_URL })
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await other.query(end)).rowCount === 0) await setTimeout(10)
  t.strictSame(await waiting, { code: 1, stdout: '', stderr: 'terminating connection due to administrator command\n' })
  t.strictSame(await tablesOf(DATABASE_URL), [])
})
