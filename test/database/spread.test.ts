// Citus stores the plants of each user on one of several servers, and rejects some statements and migrations.
// These tests check, without Citus, that the service needs no statement or migration that Citus rejects.
import { glob, readdir, readFile } from 'node:fs/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { versionStatement } from '../../src/database/migrate.ts'
import { startApp } from '../support/app.ts'
import { statementsOf } from '../support/citus.ts'
import { createDatabase, sql } from '../support/database.ts'
import { cursorAt } from '../support/plants.ts'
import { run, unmeasured } from '../support/program.ts'

interface Statement { name: string, text: string }

const root = new URL('../../', import.meta.url)
const range = (length: number) => Array.from({ length }, (_, index) => index)

// Each of these statements serves several users. On Citus the service sends them only if WRITE_BATCH is set.
const ofSeveralUsers = ['plants-delete', 'plants-pages']

/** Records the statements that the service sends from now on: maps their names to their texts. */
function watchStatements (t: Test): Map<string, string> {
  const texts = new Map<string, string>()
  const { parse } = pg.Connection.prototype as unknown as { parse: (query: Statement) => void }
  t.teardown(() => Object.assign(pg.Connection.prototype, { parse }))
  Object.assign(pg.Connection.prototype, {
    parse (this: unknown, query: Statement) {
      texts.set(query.name, query.text)
      return parse.call(this, query)
    }
  })
  return texts
}

/** Makes the service send each of its statements. */
async function sendAll (t: Test): Promise<void> {
  const { app, as, database, tokens } = await startApp(t)
  const alice = await as('alice')
  for (const id of [0, 1]) await alice.create({ id, name: 'Fern' })
  await Promise.all(range(600).map((id) => alice.create({ id, name: 'Fern', tag: 'x'.repeat(id) })))
  await alice.list()
  await alice.list('?limit=599')
  const bob = await as('bob')
  await Promise.all(range(20).map(() => bob.list()))
  await Promise.all(range(20).map(() => bob.list(`?after=${cursorAt(0)}`)))
  await alice.delete(0)
  await Promise.all(range(600).map((id) => alice.delete(id)))
  await app.inject('/readyz')
  await database.read(versionStatement)
  const [token] = await tokens.list('alice')
  await tokens.revoke({ id: String(token?.id) })
  await tokens.revoke({ user: 'alice' })
}

/** Returns the names of all prepared statements in src. `plants-insert-${rows}` counts as `plants-insert`. */
async function namesInSource (): Promise<string[]> {
  const names = []
  for await (const file of glob('src/**/*.ts', { cwd: root })) {
    const source = await readFile(new URL(file, root), 'utf8')
    const found = source.matchAll(/\b(?:name: '|preparedAs: `)([\w-]+)(?:',|-\$\{\w+\}`,)\s+text:/g)
    names.push(...[...found].map(([, name]) => name as string))
  }
  return names
}

t.test('every statement on plants concerns one user, unless the service can do without it', async (t) => {
  const texts = watchStatements(t)
  await sendAll(t)
  const sent = new Set([...texts.keys()].map((name) => name.replace(/-\d+$/, '')))
  t.strictSame([...sent].sort(), (await namesInSource()).sort(), 'all were sent')
  for (const [name, text] of texts) {
    if (!/\bplants\b/.test(text)) continue
    t.notMatch(text, /\btokens\b/, `${name} does not join plants and tokens`)
    if (ofSeveralUsers.includes(name)) continue
    const ofOneUser = /\bowner = (\$\d|'')|insert into plants \(owner, .* values \(\$1, /
    t.match(text, ofOneUser, `${name} names one owner or inserts values`)
    t.notMatch(text, /insert[^]*select/, `${name} inserts no rows of a select`)
  }
})

t.test('migrate rejects a worker of Citus and names the coordinator', async (t) => {
  const DATABASE_URL = await createDatabase(t, { template: 'template0' })
  // Simulate a Citus worker. In Citus, this table has groupid 0 only on the coordinator.
  await sql(DATABASE_URL, `create table pg_dist_local_group (groupid int);
    insert into pg_dist_local_group values (2)`)
  const stderr = /worker of Citus\. Run migrate on the coordinator/
  t.match(await run(['migrate'], { DATABASE_URL }), { code: 1, stdout: '', stderr })
  t.match(await unmeasured.run(['serve'], { DATABASE_URL, PORT: '0' }), { code: 1, stderr: /MIGRATE=off/ })
  const tables = await sql(DATABASE_URL, "select tablename from pg_tables where schemaname = 'public'")
  t.strictSame(tables, [{ tablename: 'pg_dist_local_group' }])

  await sql(DATABASE_URL, 'update pg_dist_local_group set groupid = 0')
  t.match(await run(['migrate'], { DATABASE_URL }), { code: 0 })
})

t.test('each migration of distributed tables is one statement', async (t) => {
  // These two migrations run before the tables are distributed, so they may have several statements.
  const first = ['0001_plants.sql', '0002_tokens.sql']
  for (const file of await readdir(new URL('migrations/', root))) {
    if (first.includes(file)) continue
    const migration = await readFile(new URL(`migrations/${file}`, root), 'utf8')
    const [up = '', down = ''] = migration.split('-- Down Migration')
    for (const step of [up, down]) t.ok(statementsOf(step) <= 1, `${file}: ${step}`)
  }
  t.equal(statementsOf('-- a; b\nalter table plants add x int;\n'), 1)
  t.equal(statementsOf('do $$ begin drop table a; drop table b; end $$;'), 1)
  t.equal(statementsOf("alter table plants add x text default ';'; drop table y;"), 2)
})
