// What a database asks for that spreads plants over several servers by owner, as Citus does: checked without one.
import { glob, readdir, readFile } from 'node:fs/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { versionStatement } from '../../src/database/migrate.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, sql } from '../support/database.ts'
import { run, unmeasured } from '../support/program.ts'

const root = new URL('../../', import.meta.url)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)
const range = (length: number) => Array.from({ length }, (_, index) => index)

// Of several owners in one statement: refused there, and then done one by one.
const ofSeveralOwners = ['plants-delete', 'plants-first-pages']

/** The text of each statement that is sent from here on, by name. */
function watchStatements (t: Test): Map<string, string> {
  const texts = new Map<string, string>()
  const { parse } = pg.Connection.prototype as unknown as { parse: (query: { name: string, text: string }) => void }
  t.teardown(() => Object.assign(pg.Connection.prototype, { parse }))
  Object.assign(pg.Connection.prototype, {
    parse (this: unknown, query: { name: string, text: string }) {
      texts.set(query.name, query.text)
      return parse.call(this, query)
    }
  })
  return texts
}

/** Has the service send every statement it knows. */
async function sendAll (t: Test): Promise<void> {
  const { app, as, database, tokens } = await startApp(t)
  const alice = await as('alice')
  for (const id of [0, 1]) await alice.create({ id, name: 'Fern' })
  await Promise.all(range(600).map((id) => alice.create({ id, name: 'Fern', tag: 'x'.repeat(id) })))
  await alice.list()
  const bob = await as('bob')
  await Promise.all(range(20).map(() => bob.list()))
  await alice.delete(0)
  await Promise.all(range(600).map((id) => alice.delete(id)))
  await app.inject('/readyz')
  await database.read(versionStatement)
  const [token] = await tokens.list('alice')
  await tokens.revoke({ id: String(token?.id) })
  await tokens.revoke({ user: 'alice' })
}

/** What all statements in the source are prepared as, numbers of rows left out. */
async function namesInSource (): Promise<string[]> {
  const names = []
  for await (const file of glob('src/**/*.ts', { cwd: root })) {
    const source = await readFile(new URL(file, root), 'utf8')
    const found = source.matchAll(/\b(?:name: '|preparedAs: `)([\w-]+)(?:',|-\$\{\w+\}`,)\s+text:/g)
    names.push(...[...found].map(([, name]) => name as string))
  }
  return names
}

t.test('every statement on plants names one owner, inserts values, or has a way without', async (t) => {
  const texts = watchStatements(t)
  await sendAll(t)
  const sent = new Set([...texts.keys()].map((name) => name.replace(/-\d+$/, '')))
  t.strictSame([...sent].sort(), (await namesInSource()).sort(), 'all were sent')
  for (const [name, text] of texts) {
    if (!/\bplants\b/.test(text)) continue
    t.notMatch(text, /\btokens\b/, `${name} does not join plants and tokens`)
    if (ofSeveralOwners.includes(name)) continue
    t.match(text, /\bowner = (\$\d|'')|insert into plants \(owner, .* values \(\$1, /, `${name} is about one owner, or of values`)
    t.notMatch(text, /insert[^]*select/, `${name} takes no rows from a select`)
  }
})

t.test('on Citus no statement has rows of several users, unless WRITE_BATCH is set, and the probe asks no node', async (t) => {
  const texts = watchStatements(t)
  const url = await createDatabase(t)
  await sql(url, "update pg_extension set extname = 'citus' where extname = 'plpgsql'")
  for (const [environment, batches] of [[{}, []], [{ WRITE_BATCH: '500' }, ofSeveralOwners]] as const) {
    const { app, as, database } = await startApp(t, { DATABASE_URL: url, ...environment })
    await Promise.all([database.read(versionStatement), database.write(versionStatement)])
    const alice = await as('alice')
    const creates = await Promise.all(range(20).map((id) => alice.create({ id, name: 'Fern' })))
    const lists = await Promise.all(range(20).map(() => alice.list()))
    const deletes = await Promise.all(range(21).map((id) => alice.delete(id)))
    t.strictSame(statuses(creates), Array(20).fill(200))
    t.strictSame(lists.map((list) => list.json().length), Array(20).fill(20))
    t.strictSame(statuses(deletes), [...Array(20).fill(204), 404])
    t.strictSame(ofSeveralOwners.filter((name) => texts.has(name)), batches)
    t.equal((await app.inject('/readyz')).statusCode, 200)
    t.match(texts.get('probe-plants'), 'where false')
  }
})

t.test('a worker of Citus is not migrated, and the message says where to', async (t) => {
  const DATABASE_URL = await createDatabase(t, { template: 'template0' })
  // As Citus has it; there it is 0 on the coordinator.
  await sql(DATABASE_URL, 'create table pg_dist_local_group (groupid int); insert into pg_dist_local_group values (2)')
  t.match(await run(['migrate'], { DATABASE_URL }), { code: 1, stdout: '', stderr: /worker of Citus\. Run migrate on the coordinator/ })
  t.match(await unmeasured.run(['serve'], { DATABASE_URL, PORT: '0' }), { code: 1, stderr: /MIGRATE=off/ })
  t.strictSame(await sql(DATABASE_URL, "select tablename from pg_tables where schemaname = 'public'"), [{ tablename: 'pg_dist_local_group' }])

  await sql(DATABASE_URL, 'update pg_dist_local_group set groupid = 0')
  t.match(await run(['migrate'], { DATABASE_URL }), { code: 0 })
})

t.test('a migration of tables that are spread is one statement', async (t) => {
  // They come before anybody can have spread the tables.
  const first = ['0001_plants.sql', '0002_tokens.sql']
  for (const file of await readdir(new URL('migrations/', root))) {
    if (first.includes(file)) continue
    const [up = '', down = ''] = (await readFile(new URL(`migrations/${file}`, root), 'utf8')).split('-- Down Migration')
    for (const step of [up, down]) t.ok(statementsOf(step) <= 1, `${file}: ${step}`)
  }
  t.equal(statementsOf('-- a; b\nalter table plants add x int;\n'), 1)
  t.equal(statementsOf('do $$ begin drop table a; drop table b; end $$;'), 1)
  t.equal(statementsOf("alter table plants add x text default ';'; drop table y;"), 2)
})

/** Not counting what stands in comments, strings and `do` blocks. */
function statementsOf (text: string): number {
  const bare = text.replaceAll(/\$(\w*)\$.*?\$\1\$/gs, '').replaceAll(/--.*/g, '').replaceAll(/'[^']*'/g, '')
  return bare.split(';').filter((statement) => statement.trim() !== '').length
}
