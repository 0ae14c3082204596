// Citus stores the plants of each user on one of several servers, and rejects some statements and migrations.
// These tests need no Citus. The first ones check that Citus accepts all statements and migrations.
import { once } from 'node:events'
import { readFile } from 'node:fs/promises'
import { connect, createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import pg from 'pg'
import t, { type Test } from 'tap'
import { startRecordingUses } from '../../src/access/token-uses.ts'
import { importRows } from '../../src/commands/transfer/import.ts'
import { readConfig } from '../../src/config.ts'
import { openDatabase } from '../../src/database/database.ts'
import { migrate, serverStatement, UnsupportedServer } from '../../src/database/migrate.ts'
import { ownedTables } from '../../src/domains.ts'
import { statementEvents, type StatementEvent } from '../../src/telemetry-events.ts'
import { plantsTable } from '../../src/plants/plant.ts'
import { createPlants } from '../../src/plants/repository.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, openSession, sql } from '../support/database.ts'
import { identityOf } from '../support/identity.ts'
import { exampleOf, findStatements } from '../support/tables.ts'
import { migrations } from '../support/migrations.ts'

const root = new URL('../../', import.meta.url)
const range = (length: number) => Array.from({ length }, (_, index) => index)

/** Matches a table with the data of users. */
const ownedNames = ownedTables.map(({ name }) => name)
const owned = new RegExp(`\\b(${ownedNames.join('|')})\\b`)

/** Makes the service send each of its statements. PostgreSQL plans the statements for small tables. */
async function sendAll (t: Test) {
  const { app, as, database, tokens, url } = await startApp(t)
  const stop = startRecordingUses(database, app.log)
  for (const table of ownedTables) {
    const alice = await as('alice', {}, `/${table.name}`)
    for (const id of [0, 1]) await alice.create(exampleOf(table, id))
    await sql(url, 'vacuum analyze')
    const [field = ''] = table.textFields
    await Promise.all(range(600).map((id) =>
      alice.create({ ...exampleOf(table, id), [field]: 'x'.repeat(id) })))
    await alice.list()
    await alice.list('?limit=599')
    const bob = await as('bob', {}, `/${table.name}`)
    await Promise.all(range(20).map(() => bob.list()))
    await alice.delete(0)
    await Promise.all(range(600).map((id) => alice.delete(id)))
  }
  await app.inject('/readyz')
  await database.read(serverStatement)
  const [token] = await tokens.list()
  await tokens.revoke({ id: token?.id })
  await tokens.revoke({ user: 'alice' })
  await stop()
  return { database, url }
}

t.test('every statement on plants concerns one user, unless the service can do without it', async (t) => {
  const parsed = t.capture(pg.Connection.prototype, 'parse', pg.Connection.prototype.parse)
  const events: StatementEvent[] = []
  const note = (event: StatementEvent) => { events.push(event) }
  statementEvents.subscribe(note)
  const { database, url } = await sendAll(t)
  statementEvents.unsubscribe(note)
  const texts = new Map(parsed.args().map(([{ name, text }]) => [name, text]))
  const alone = events.filter(({ name, requestContext }) =>
    owned.test(texts.get(name) ?? '') && !Array.isArray(requestContext))
  t.strictSame(alone, [], 'a batcher sends every statement on plants')
  // `plants-insert-512` counts as `plants-insert`.
  const sent = new Set([...texts.keys()].map((name) => name.replace(/-\d+$|(?<=^probe)-\w+$/, '')))
  t.strictSame([...sent].sort(), await findStatements(), 'all were sent')
  for (const [name, text] of texts) {
    if (!owned.test(text)) continue
    t.notMatch(text, /\btokens\b/, `${name} does not join plants and tokens`)
    // These statements serve several users. On Citus the service sends a delete only if WRITE_BATCH is set,
    // and never the pages.
    if (/-(delete|pages)$/.test(name)) continue
    const ofOneUser = /\bowner = \$\d|insert into \w+ \(owner, [^)]*\)\s+values \(\$1, |\w where false$/
    t.match(text, ofOneUser, `${name} names one owner, inserts values or reads nothing`)
    t.notMatch(text, /insert[^]*select/, `${name} inserts no rows of a select`)
  }
  // At its end, a session reports its scans.
  await database.close()
  const sessions = "select from pg_stat_activity where application_name = 'plant-store'"
  while ((await sql(url, `${sessions} and datname = current_database()`)).length > 0);
  const scanned = 'select relname from pg_stat_user_tables where seq_scan > 0 and relname = any ($1)'
  t.strictSame(await sql(url, scanned, [ownedNames]), [], 'no statement reads a whole table')
})

t.test('the key of each table with an owner begins with the owner, in the collation "C"', async (t) => {
  const keys = await sql(await createDatabase(t), `select conrelid::regclass::text as name
    from pg_constraint join pg_attribute on attrelid = conrelid and attnum = conkey[1]
    where contype = 'p' and attname = 'owner' and attcollation = '"C"'::regcollation order by name`)
  t.strictSame(keys.map(({ name }) => name), ownedNames.toSorted())
})

t.test('every index of texts has the collation "C", whose order no system library changes', async (t) => {
  const others = await sql(await createDatabase(t), `select indexrelid::regclass::text as index
    from pg_index, unnest(indcollation) as used
    where indrelid::regclass::text = any ($1) and used not in (0, '"C"'::regcollation)`,
  [[...ownedNames, 'tokens', 'migrations']])
  t.strictSame(others, [])
})

t.test('migrate rejects a worker of Citus and names the coordinator', async (t) => {
  const url = await createDatabase(t, { template: 'template0' })
  // Simulate a Citus worker. In Citus, this table has groupid 0 only on the coordinator.
  await sql(url, 'create table pg_dist_local_group as select 2 as groupid')
  const error = await migrate(url).catch((error) => error)
  t.type(error, UnsupportedServer)
  t.match(error.message, /worker of Citus\. Run migrate on the coordinator, and serve here with MIGRATE=off/)
  const tables = await sql(url, "select tablename from pg_tables where schemaname = 'public'")
  t.strictSame(tables, [{ tablename: 'pg_dist_local_group' }])
  await sql(url, 'update pg_dist_local_group set groupid = 0')
  t.strictSame(await migrate(url), migrations)
})

t.test('each migration of distributed tables is one statement', async (t) => {
  const client = await openSession(t, await createDatabase(t, { template: 'template0' }))
  const several = []
  for (const name of migrations) {
    const text = await readFile(new URL(`migrations/${name}.sql`, root), 'utf8')
    // In PostgreSQL's extended protocol, several statements in one text are a syntax error.
    const query = { text, queryMode: 'extended' }
    const { code } = await client.query(query).catch((error) => error)
    if (code === '42601') several.push(name)
  }
  t.strictSame(several, ['0002_tokens'], 'this migration runs before the tables are distributed')
})

// The tests below use a PostgreSQL that looks like Citus.

async function createCitus (t: Test): Promise<string> {
  const url = await createDatabase(t)
  await sql(url, "update pg_extension set extname = 'citus' where extname = 'plpgsql'")
  return url
}

/** Opens a proxy like the coordinator of Citus 13.2.2: it counts the selected rows of `insert … select`. */
async function openCoordinator (t: Test, url: string): Promise<string> {
  const { hostname, port } = new URL(url)
  const server = createServer((near) => {
    const far = connect(Number(port), hostname)
    // A command or the server may reset a connection.
    near.on('error', () => far.destroy())
    far.on('error', () => near.destroy())
    near.pipe(far).on('data', (chunk: Buffer) => {
      // The replacement keeps the length of the message.
      const text = chunk.toString('latin1')
        .replaceAll(/(?<=INSERT 0 )\d+/g, (count) => count.replaceAll(/./g, '9'))
      near.write(Buffer.from(text, 'latin1'))
    })
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  t.teardown(() => server.close())
  const { port: nearPort } = server.address() as AddressInfo
  return Object.assign(new URL(url), { host: `127.0.0.1:${nearPort}` }).href
}

t.test('on Citus, an import skips plants that exist, and counts what it creates', async (t) => {
  const url = await createDatabase(t)
  const config = readConfig({ DATABASE_URL: await openCoordinator(t, url) })
  const lines = (ids: number[]) => ids.map((id) => `{"id":${id},"name":"plant ${id}"}\n`).join('')
  const folder = t.testdir(
    { 'one.ndjson': lines([2]), 'all.ndjson': lines([1, 2, 3]), 'unsorted.ndjson': lines([4, 3]) })
  const printed = t.capture(console, 'error')
  for (const [name, summary] of [
    ['one', '1 created, 0 existing, 0 rejected'], ['all', '2 created, 1 existing, 0 rejected'],
    ['unsorted', '1 created, 1 existing, 0 rejected'], ['all', '0 created, 3 existing, 0 rejected']
  ]) {
    await importRows(config, plantsTable, 'ann', join(folder, `${name}.ndjson`), { dryRun: false })
    t.strictSame(printed.args().splice(0), [[summary]])
  }
})

t.test('on Citus, the first creates of a process share statements only if WRITE_BATCH is set', async (t) => {
  for (const WRITE_BATCH of [undefined, 500]) {
    const url = await createCitus(t)
    const database = openDatabase({ url, statementTimeoutMs: 60_000 })
    t.teardown(database.close)
    const config = { WRITE_BATCH, MAX_QUEUED: 100, BODY_LIMIT: 1000 }
    const plants = createPlants(database, config, new MemoryBudget(1_000_000))
    await Promise.all(range(20).map((number) =>
      plants.create(identityOf(`user ${number}`), { id: 1n, name: 'Fern' })))
    const [row] = await sql(url, 'select count(distinct xmin::text)::int as statements from plants')
    t.equal(row?.statements as number < 20, WRITE_BATCH !== undefined, `${row?.statements} statements`)
  }
})

t.test('on Citus, no statement reads the lists of several users', async (t) => {
  const { as } = await startApp(t, { DATABASE_URL: await createCitus(t), WRITE_BATCH: '500' })
  const users = await Promise.all(range(20).map((number) => as(`user ${number}`)))
  // Make the service cache the tokens, so that the lists could share statements.
  await Promise.all(users.map((user) => user.delete(1)))
  const names = new Set<string>()
  const note = ({ name }: StatementEvent) => { names.add(name) }
  statementEvents.subscribe(note)
  await Promise.all(users.map((user) => user.list()))
  statementEvents.unsubscribe(note)
  t.strictSame([...names].filter((name) => owned.test(name)), ['plants-page'])
})

t.test('a process that is older than the extension Citus notices it by a result', async (t) => {
  const url = await createDatabase(t)
  // Simulate two shards: each statement of a page returns its rows twice.
  await sql(url, `create function public.clock_timestamp () returns setof timestamptz language sql
      as 'select pg_catalog.clock_timestamp() from generate_series(1, 2)';
    alter database ${new URL(url).pathname.slice(1)} set search_path = public, pg_catalog`)
  const database = openDatabase({ url, statementTimeoutMs: 60_000 })
  t.teardown(database.close)
  await database.open()
  t.notOk(database.isDistributed())
  await sql(url, "update pg_extension set extname = 'citus' where extname = 'plpgsql'")
  const names = range(3).map((number) => `user ${number}`)
  await sql(url,
    'insert into plants (owner, id, name) select name, 1, name from unnest($1::text[]) as name', [names])
  const config = { WRITE_BATCH: undefined, MAX_QUEUED: 100, BODY_LIMIT: 1000 }
  const plants = createPlants(database, config, new MemoryBudget(10_000_000))
  const sent: string[] = []
  const note = ({ name }: StatementEvent) => { sent.push(name) }
  statementEvents.subscribe(note)
  t.teardown(() => statementEvents.unsubscribe(note))
  for (const expected of [['plants-pages', ...Array(3).fill('plants-page')], Array(3).fill('plants-page')]) {
    const lists = await Promise.all(names.map((name) =>
      plants.list(identityOf(name), { limit: Infinity }, new PassThrough())))
    t.strictSame(lists.map(({ rows }) => rows), names.map((name) => [{ name, tag: undefined }]))
    t.strictSame(sent.splice(0).filter((name) => owned.test(name)), expected)
  }
})

t.test('the errors of a lost worker concern its users alone, and the service stays ready', async (t) => {
  // The errors of Citus 13.2.2. A statement gets the first error if it needs a new connection to the worker.
  // A statement in flight gets the second error.
  for (const [code, message] of [
    ['08006', 'connection to the remote node postgres@worker-one:5432 failed with the following error: ' +
      'server closed the connection unexpectedly'],
    ['57P01', 'terminating connection due to administrator command']
  ] as const) {
    const url = await createCitus(t)
    const { as, untilReadiness } = await startApp(t, { DATABASE_URL: url })
    const users = [await as('alice'), await as('bob')]
    for (const user of users) await Promise.all(range(10).map((id) => user.create({ id, name: 'Fern' })))
    // From now on, every statement on a plant of alice fails with this error.
    await sql(url, `create function is_on_worker (name text) returns boolean language plpgsql as $$
      begin
        if name = 'alice' then raise exception using errcode = '${code}', message = '${message}'; end if;
        return true;
      end $$;
      alter table plants rename to stored_plants;
      create view plants as select * from stored_plants where is_on_worker(owner) with check option`)
    const results = await Promise.all(users.map(async (user) => {
      const responses = await Promise.all(range(10).flatMap((id) =>
        [user.create({ id: id + 10, name: 'Moss' }), user.list(), user.delete(id)]))
      return responses.map(({ statusCode, body }) => statusCode < 400 ? statusCode : JSON.parse(body).error)
    }))
    t.same(results, [Array(30).fill(50301), range(10).flatMap(() => [200, 200, 204])], code)
    await untilReadiness(200)
  }
})
