import t, { type Test } from 'tap'
import manifest from '../../package.json' with { type: 'json' }
import { createDatabase, sql } from '../support/database.ts'
import { run, unmeasured } from '../support/program.ts'

const tooOld = 'PostgreSQL 14.9 is too old, this needs 15 or later.\n'

/** A database whose server calls itself older than it is. */
async function createOld (t: Test): Promise<string> {
  const url = await createDatabase(t, { template: 'template0' })
  await sql(url, `create function public.current_setting (name text) returns text language sql
    return case name when 'server_version_num' then '140009' else pg_catalog.current_setting(name) end`)
  await sql(url, `alter database ${new URL(url).pathname.slice(1)} set search_path = public, pg_catalog`)
  return url
}

t.test('a start says which version runs, and on which server', async (t) => {
  const url = await createDatabase(t)
  const [row] = await sql(url, 'show server_version')
  const service = await unmeasured.serve(t, { DATABASE_URL: url })
  const ready = await service.logged('ready')
  t.equal(ready.version, manifest.version)
  t.match(row?.server_version, new RegExp(`^${ready.postgresql}\\b`))
})

t.test('a server that is too old is told in one line, and nothing is left open or made in it', async (t) => {
  const DATABASE_URL = await createOld(t)
  const served = await run(['serve'], { DATABASE_URL, PORT: '0' })
  t.strictSame([served.code, served.stderr], [1, tooOld])
  t.strictSame(await unmeasured.run(['migrate'], { DATABASE_URL }), { code: 1, stdout: '', stderr: tooOld })
  t.strictSame(await sql(DATABASE_URL, 'select tablename from pg_tables where schemaname = \'public\''), [])
})
