// Runs all statements of the program with statistics that mislead the planner. Each statement must read few
// more rows than its result needs.
import { join } from 'node:path'
import t from 'tap'
import { eraseUser, listUsers } from '../../../src/commands/users.ts'
import { exportRows } from '../../../src/commands/transfer/export.ts'
import { importRows } from '../../../src/commands/transfer/import.ts'
import { readConfig } from '../../../src/config.ts'
import { migrate } from '../../../src/database/migrate.ts'
import { ownedTables, tableNames } from '../../../src/domains.ts'
import { statementEvents } from '../../../src/telemetry-events.ts'
import { plantsTable } from '../../../src/plants/plant.ts'
import { startApp } from '../../support/app.ts'
import { createDatabase, sql } from '../../support/database.ts'
import { reportPlans, watchPlans } from '../../support/plans.ts'
import { findStatements } from '../../support/tables.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const users = range(20).map((index) => `user ${index}`)
/** Each of the first 20 users has `few` plants. The users large and erased have `many`. Others have one. */
const [few, many, others] = [20, 2500, 2500]

const folder = t.testdir({
  'new.ndjson': range(few).map((id) => `{"id":${id + 1000},"name":"Fern"}\n`).join(''),
  'old.ndjson': range(few).map((id) => `{"id":${id},"name":"Fern"}\n`).join('')
})
const plantsOf = (user: string, count: number) =>
  `insert into plants (owner, id, name) select ${user}, n, 'Fern'
  from generate_series(0, ${count} - 1) as n`
const tokensOf = (user: string, count: number) => `insert into tokens (hash, username)
  select sha256((${user})::bytea), ${user} from generate_series(0, ${count} - 1) as n`
const other = "'other ' || n"
const addOthers = [plantsOf(other, others), tokensOf(other, others)]
const addUsers = [
  ...users.map((user) => plantsOf(`'${user}'`, few)),
  ...['large', 'erased'].map((user) => plantsOf(`'${user}'`, many)),
  "insert into plants (owner, id, name) values ('wide', 1, repeat('n', 20000))"
]

// A statement that was planned for an earlier state of the tables keeps its plan until they are analyzed.
const scenarios: Array<{ title: string, first: string[], later: string[], isPlannedFirst?: boolean }> = [
  { title: 'without statistics', first: [], later: addOthers },
  { title: 'with the statistics of users with one plant', first: [...addOthers, 'analyze'], later: [] },
  {
    title: 'with the statistics of one huge user',
    first: [plantsOf("'huge'", many), 'analyze'],
    later: addOthers
  },
  {
    // The planner expects no rows in as many pages.
    title: 'with the statistics of an import that was rolled back',
    first: [plantsOf("'huge'", many), 'delete from plants', 'vacuum (truncate off, analyze)'],
    later: addOthers,
    isPlannedFirst: true
  },
  ...[0, 1, 2].map((count) => ({
    title: `with a plan for ${count} plants`,
    first: [plantsOf("'tiny'", count), tokensOf("'tiny ' || n", count), 'vacuum analyze'],
    later: addOthers,
    isPlannedFirst: true
  }))
]

const statements = await findStatements()
const ofDomain = new RegExp(`^(${ownedTables.map(({ name }) => name).join('|')})-`)

for (const { title, first, later, isPlannedFirst = false } of scenarios) {
  await t.test(`${title}, each statement reads few rows`, async (t) => {
    const url = await createDatabase(t)
    for (const table of tableNames) await sql(url, `alter table ${table} set (autovacuum_enabled = off)`)
    for (const statement of first) await sql(url, statement)
    await reportPlans((text) => sql(url, text), new URL(url).pathname.slice(1))
    const watch = watchPlans(t)
    const { app, as, tokens } = await startApp(t, { DATABASE_URL: url, TOKEN_CACHE_TTL: '0' })
    const clients = await Promise.all(users.map((user) => as(user)))
    const [client] = clients as [typeof clients[0]]
    const [large, wide] = [await as('large'), await as('wide')]
    const config = readConfig({ DATABASE_URL: url })
    t.capture(console, 'log')
    t.capture(console, 'error')

    const ids = range(20).map((index) => 10_000 + index)
    const importFile = (file: string, dryRun = false) =>
      importRows(config, plantsTable, users[1], join(folder, file), { dryRun })
    const revokeFirst = async () => tokens.revoke({ id: (await tokens.list(users[0]))[0]?.id as string })
    /** How many rows each act may read. A request also looks up its token. */
    const requests: Array<[name: string, maxRows: number, act: () => Promise<unknown>]> = [
      ['create', 1, () => client.create({ id: 10_000, name: 'Fern' })],
      ['repeated create', 2, () => client.create({ id: 10_000, name: 'Fern' })],
      ['delete', 2, () => client.delete(10_000)],
      ['creates', 20, () => Promise.all(ids.map((id) => client.create({ id, name: 'Fern' })))],
      ['deletes', 40, () => Promise.all(ids.map(client.delete))],
      ['list', few + 1, () => client.list()],
      ['lists', 20 * (few + 1), () => Promise.all(clients.map((each) => each.list()))],
      ['page', 3, () => large.list('?limit=1')],
      ['pages', 300, () => large.list('?limit=250')],
      ['long list', 1.1 * many, () => large.list()],
      ['end of a page', 1.1 * many, () => large.list('?limit=2300')],
      ['large text', 4, () => wide.list()],
      ['probe', 0, () => app.inject('/readyz')]
    ]
    const commands: typeof requests = [
      ['import', few, () => importFile('new.ndjson')],
      ['import of existing plants', few, () => importFile('old.ndjson')],
      // It reads the lines twice.
      ['dry run', 3 * few, () => importFile('old.ndjson', true)],
      ['export', few, () => exportRows(config, plantsTable, users[0], join(folder, 'out.ndjson'), {})],
      ['token list', 1, () => tokens.list(users[0])],
      ['token revoke', 2, revokeFirst],
      ['token revoke --user', 1, () => tokens.revoke({ user: users[1] })],
      ['migrate', 10, () => migrate(url)],
      // The command counts the plants before and after it deletes them.
      ['user erase', 3 * many, () => eraseUser(config, 'erased', true)],
      ['user list', 20_000, () => listUsers(config)]
    ]

    // PostgreSQL plans the first five executions of a prepared statement, then keeps one plan.
    const repeated = isPlannedFirst ? range(6).flatMap(() => requests) : []
    for (const [,, act] of repeated) await act()
    for (const statement of [...later, ...addUsers]) await sql(url, statement)
    const sent = new Set<string>()
    const note = ({ name }: { name: string }) => { sent.add(name) }
    statementEvents.subscribe(note)
    t.teardown(() => statementEvents.unsubscribe(note))
    for (const [name, maxRows, act] of [...requests, ...commands]) {
      const reports = await watch(act)
      const rows = reports.reduce((sum, { rowsRead }) => sum + rowsRead, 0)
      if (!t.ok(rows <= maxRows, `${name}: ${rows} rows`)) t.comment(JSON.stringify(reports))
    }
    const missing = statements.filter((name) => ofDomain.test(name) && !sent.has(name))
    t.strictSame(missing, [], 'each statement of a domain was sent')
    const left = await sql(url, "select from plants where owner = 'erased'")
    t.equal(left.length, 0)
  })
}
