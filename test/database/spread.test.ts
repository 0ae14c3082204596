// Citus stores the plants of each user on one of several servers, and rejects some statements and migrations.
// These tests need no Citus. The first ones check that Citus accepts all statements and migrations.
import { glob, readdir, readFile } from 'node:fs/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { ownedTables } from '../../src/commands/users.ts'
import { openDatabase } from '../../src/database/database.ts'
import { migrate, serverStatement, UnsupportedServer } from '../../src/database/migrate.ts'
import { statementEvents, type StatementEvent } from '../../src/events.ts'
import { createPlants } from '../../src/plants/repository.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, sql } from '../support/database.ts'
import { identityOf } from '../support/identity.ts'
import { migrations } from '../support/migrations.ts'
import { cursorAt } from '../support/plants.ts'

interface Statement { name: string, text: string }

const root = new URL('../../', import.meta.url)
const range = (length: number) => Array.from({ length }, (_, index) => index)

// Each of these statements serves several users. On Citus the service sends them only if WRITE_BATCH is set.
const ofSeveralUsers = ['plants-delete', 'plants-pages']

/** Matches a table with the data of users. */
const owned = new RegExp(`\\b(${ownedTables.join('|')})\\b`)

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
  await database.read(serverStatement)
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
  const unbatched = new Set<string>()
  const note = ({ name, requestContext }: StatementEvent) => {
    if (!Array.isArray(requestContext)) unbatched.add(name)
  }
  statementEvents.subscribe(note)
  await sendAll(t)
  statementEvents.unsubscribe(note)
  const concernsUsers = (name: string) => owned.test(texts.get(name) ?? '')
  t.strictSame([...unbatched].filter(concernsUsers), [], 'a Batcher sends every statement on plants')
  const sent = new Set([...texts.keys()].map((name) => name.replace(/-\d+$/, '')))
  t.strictSame([...sent].sort(), (await namesInSource()).sort(), 'all were sent')
  for (const [name, text] of texts) {
    if (!owned.test(text)) continue
    t.notMatch(text, /\btokens\b/, `${name} does not join plants and tokens`)
    if (ofSeveralUsers.includes(name)) continue
    const ofOneUser = /\bowner = (\$\d|'')|insert into \w+ \(owner, .* values \(\$1, /
    t.match(text, ofOneUser, `${name} names one owner or inserts values`)
    t.notMatch(text, /insert[^]*select/, `${name} inserts no rows of a select`)
  }
})

t.test('the key of each table with an owner begins with the owner, in the collation "C"', async (t) => {
  const keys = await sql(await createDatabase(t), `select conrelid::regclass::text as name
    from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
    where contype = 'p' and attname = 'owner' and attcollation = '"C"'::regcollation order by name`)
  t.strictSame(keys.map(({ name }) => name), ownedTables.toSorted())
})

t.test('migrate rejects a worker of Citus and names the coordinator', async (t) => {
  const url = await createDatabase(t, { template: 'template0' })
  // Simulate a Citus worker. In Citus, this table has groupid 0 only on the coordinator.
  await sql(url, `create table pg_dist_local_group (groupid int);
    insert into pg_dist_local_group values (2)`)
  const error = await migrate(url, 'up').catch((error) => error)
  t.type(error, UnsupportedServer)
  t.match(error.message, /worker of Citus\. Run migrate on the coordinator, and serve here with MIGRATE=off/)
  const tables = await sql(url, "select tablename from pg_tables where schemaname = 'public'")
  t.strictSame(tables, [{ tablename: 'pg_dist_local_group' }])

  await sql(url, 'update pg_dist_local_group set groupid = 0')
  t.strictSame(await migrate(url, 'up'), migrations)
})

/** Counts the statements in an SQL text. Ignores semicolons in comments, strings and `do` blocks. */
function statementsOf (text: string): number {
  const bare = text.replaceAll(/\$(\w*)\$.*?\$\1\$/gs, '').replaceAll(/--.*/g, '').replaceAll(/'[^']*'/g, '')
  return bare.split(';').filter((statement) => statement.trim() !== '').length
}

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

// The tests below use a PostgreSQL that looks like Citus and fails like Citus after the loss of a worker.

/** Every statement on a plant of a user in the table `lost` fails with the error in this table. */
async function createCitus (t: Test): Promise<string> {
  const url = await createDatabase(t)
  await sql(url, `update pg_extension set extname = 'citus' where extname = 'plpgsql';
    create table lost (username text, sql_state text, message text);
    create function is_on_worker (name text) returns boolean language plpgsql as $$
    declare error lost := (select lost from lost where username = name);
    begin
      if error.message is not null then
        raise exception using errcode = error.sql_state, message = error.message;
      end if;
      return true;
    end $$;
    alter table plants rename to stored_plants;
    create view plants as select * from stored_plants where is_on_worker(owner) with check option`)
  return url
}

for (const [writeBatch, isBatched] of [[undefined, false], [500, true]] as const) {
  t.test(`with WRITE_BATCH=${writeBatch} the first creates of a process share ${
    isBatched ? 'statements' : 'no statement'}`, async (t) => {
    const url = await createCitus(t)
    const database = openDatabase({ url, statementTimeoutMs: 60_000 })
    t.teardown(() => database.close())
    const budget = new MemoryBudget(1_000_000)
    const config = { WRITE_BATCH: writeBatch, MAX_QUEUED: 100, BODY_LIMIT: 1000 }
    const plants = createPlants(database, config, budget)
    await Promise.all(range(20).map((number) =>
      plants.create(identityOf(`user ${number}`), { id: 1n, name: 'Fern' })))
    const [row] = await sql(url, 'select count(distinct xmin::text)::int as statements from stored_plants')
    t.equal(row?.statements as number < 20, isBatched, `${row?.statements} statements`)
  })
}

/** Sends 30 requests at once. Returns the status of each success and the error number of each failure. */
async function sendTogether (user: Awaited<ReturnType<Awaited<ReturnType<typeof startApp>>['as']>>) {
  const responses = await Promise.all(range(10).flatMap((id) =>
    [user.create({ id: id + 10, name: 'Moss' }), user.list(), user.delete(id)]))
  return responses.map(({ statusCode, body }) => statusCode < 400 ? statusCode : JSON.parse(body).error)
}

// The errors of Citus 13.2.2. A statement gets the first error if it needs a new connection to the worker. A
// statement in flight gets the second error.
const faults = [
  ['08006', 'connection to the remote node postgres@worker-one:5432 failed with the following error: ' +
    'server closed the connection unexpectedly'],
  ['57P01', 'terminating connection due to administrator command']
] as const
for (const fault of faults) {
  t.test(`"${fault[1].slice(0, 40)}…" about a user of a lost worker fails for this user alone`, async (t) => {
    const url = await createCitus(t)
    const { as, untilReadiness } = await startApp(t, { DATABASE_URL: url })
    const [alice, bob] = [await as('alice'), await as('bob')]
    for (const user of [alice, bob]) {
      await Promise.all(range(10).map((id) => user.create({ id, name: 'Fern' })))
    }
    // Without Citus the readiness probe reads the plants of the user ''. On Citus the probe needs no worker,
    // so the service stays ready although the worker of '' is lost.
    await sql(url, 'insert into lost select unnest(array[\'alice\', \'\']), $1, $2', [...fault])
    t.same(await Promise.all([sendTogether(alice), sendTogether(bob)]),
      [Array(30).fill(50301), range(10).flatMap(() => [200, 200, 204])])
    await untilReadiness(200)
  })
}
