import { readFile } from 'node:fs/promises'
import { setTimeout } from 'node:timers/promises'
import t, { type Test } from 'tap'
import { migrate } from '../../../src/database/migrate.ts'
import { tableNames } from '../../../src/domains.ts'
import { createDatabase, openSession, sql, waitingForLocks } from '../../support/database.ts'
import { matchEach } from '../../support/match.ts'
import { migrations } from '../../support/migrations.ts'
import { unmeasured } from '../../support/program.ts'

const createEmpty = (t: Test) => createDatabase(t, { template: 'template0' })
const tablesOf = async (url: string) => {
  const rows = await sql(url, "select tablename from pg_tables where schemaname = 'public' order by 1")
  return rows.map(({ tablename }) => tablename)
}

t.test('a migration has a time limit of its own, not the limit of the role', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, `create table noted (timeout text);
    create function note () returns event_trigger language plpgsql as
      $$ begin insert into noted values (current_setting('statement_timeout')); end $$;
    create event trigger note on ddl_command_end execute function note();
    alter database ${new URL(DATABASE_URL).pathname.slice(1)} set statement_timeout = '3s'`)
  await migrate(DATABASE_URL)
  t.strictSame(await sql(DATABASE_URL, 'select distinct timeout from noted'), [{ timeout: '10min' }])
})

t.test('migrations run all or not at all, and a failure does not block the next attempt', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  await sql(DATABASE_URL, 'create table tokens ()')
  await t.rejects(migrate(DATABASE_URL), { message: 'relation "tokens" already exists' })
  t.strictSame(await tablesOf(DATABASE_URL), ['migrations', 'tokens'], 'no plants')

  await sql(DATABASE_URL, 'drop table tokens')
  t.strictSame(await migrate(DATABASE_URL), migrations)
})

t.test('one of several instances migrates, while an instance with MIGRATE=off waits', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const waiting = await unmeasured.serve(t, { DATABASE_URL, MIGRATE: 'off' }, 'the database is not ready')
  t.equal((await fetch(`${waiting.address}/readyz`)).status, 503)
  t.strictSame(await tablesOf(DATABASE_URL), [])

  const others = await Promise.all(Array.from({ length: 3 }, () => unmeasured.serve(t, { DATABASE_URL })))
  await waiting.logged('ready')
  const services = [waiting, ...others]
  const migrated = services.flatMap(({ log }) => log.filter(({ msg }) => msg === 'migrated'))
  matchEach(t, migrated, [{ migrations }])
  // On a busy machine a probe of the database may time out.
  for (const { address } of services) while ((await fetch(`${address}/readyz`)).status !== 200);
})

t.test('migrate waits for another migration and reports a lost connection in one line', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  // Take the advisory lock that node-pg-migrate holds during a migration.
  const other = await openSession(t, DATABASE_URL, 'select pg_advisory_lock(7241865325823964)')
  const waiting = unmeasured.run(['migrate'], { DATABASE_URL })
  const end = `select pg_terminate_backend(pid) from (${waitingForLocks}) as waiting`
  while ((await other.query(end)).rowCount === 0) await setTimeout(10)
  const stderr = /^(The migration waits .*\n)?The database cannot be reached. terminating .* command\n$/
  t.match(await waiting, { code: 1, stdout: '', stderr })
  t.strictSame(await tablesOf(DATABASE_URL), [])
})

t.test('a service whose role does not migrate needs no more than the documented privileges', async (t) => {
  const DATABASE_URL = await createEmpty(t)
  const text = await readFile(new URL('../../../docs/operating.md', import.meta.url), 'utf8')
  const [, grant = '', revoke = ''] =
    /```sql\n(alter default privileges .*?)```.*?```sql\n(revoke .*?)```/s.exec(text) ?? []
  const role = new URL(DATABASE_URL).pathname.slice(1)
  await sql(DATABASE_URL, `create role ${role} login password 'secret'; ${grant.replace('service', role)}`)
  t.teardown(() => sql(DATABASE_URL, `drop owned by ${role}; drop role ${role}`))
  await migrate(DATABASE_URL)
  await sql(DATABASE_URL, revoke.replace('service', role))
  for (const table of [...tableNames, 'migrations']) {
    for (const privilege of ['select', 'insert', 'update', 'delete']) {
      const [row] = await sql(DATABASE_URL, 'select has_table_privilege($1, $2, $3) as may',
        [role, table, privilege])
      t.equal(row?.may, table !== 'migrations' || privilege === 'select', `${privilege} on ${table}`)
    }
  }
  const url = Object.assign(new URL(DATABASE_URL), { username: role, password: 'secret' }).href
  await t.rejects(sql(url, 'delete from migrations'), { code: '42501' })
  const { address } = await unmeasured.serve(t, { DATABASE_URL: url, MIGRATE: 'off' }, 'ready')
  t.equal((await fetch(`${address}/readyz`)).status, 200)
})
