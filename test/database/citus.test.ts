// Tests the service with PostgreSQL behind a proxy that causes the errors of Citus (test/support/citus.ts).
import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { PassThrough } from 'node:stream'
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import { openDatabase } from '../../src/database/database.ts'
import { migrate } from '../../src/database/migrate.ts'
import { createPlants, type Plants } from '../../src/plants/repository.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { startApp } from '../support/app.ts'
import { untilFast } from '../support/blocked.ts'
import { lostWorker, startCitus } from '../support/citus.ts'
import { sql } from '../support/database.ts'
import { copyProgram } from '../support/program.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const users = range(20).map((number) => `user ${number}`)

/** Each of these statements serves several requests at once. */
const batches = ['plants-insert-20', 'plants-delete', 'plants-pages']

for (const [writeBatch, expected] of [[undefined, []], [500, batches]] as const) {
  const title = writeBatch === undefined ? 'without WRITE_BATCH' : `with WRITE_BATCH=${writeBatch}`
  t.test(`${title} the first requests of a process have ${expected.length} kinds of batches`, async (t) => {
    const { url, statements } = await startCitus(t)
    const list = (from?: string) => async (plants: Plants, user: string) =>
      (await plants.list(user, { from, limit: 100 }, new PassThrough())).plants
    const verbs: Array<(plants: Plants, user: string) => Promise<unknown>> = [
      (plants, user) => plants.create(user, { id: 1n, name: 'Fern' }),
      list(),
      list('1'),
      (plants, user) => plants.delete(user, '1')
    ]
    const results = []
    for (const verb of verbs) {
      // Start without open connections, like a new process.
      const database = openDatabase({ url, statementTimeoutMs: 60_000 })
      const budget = new MemoryBudget(1_000_000)
      const plants = createPlants(database, { writeBatch, maxQueued: 100, bodyLimit: 1000, budget })
      results.push(await Promise.all(users.map((user) => verb(plants, user))))
      await database.close()
    }
    const fern = [{ name: 'Fern' }]
    t.same(results, [true, fern, fern, true].map((result) => users.map(() => result)))
    t.same(batches.filter((name) => statements.has(name)), expected)
  })
}

/** Sends 30 requests per user at once. Returns each success's status and each failure's error number. */
async function sendTogether (one: Client, other: Client): Promise<number[][]> {
  const [ones, others] = [one, other].map((client) => range(10).flatMap((id) =>
    [client.create({ id: id + 10, name: 'Moss' }), client.list(), client.delete(id)]))
  return Promise.all([ones, others].map(async (requests = []) =>
    (await Promise.all(requests)).map(({ statusCode, body }) =>
      statusCode < 400 ? statusCode : JSON.parse(body).error as number)))
}

type Client = Awaited<ReturnType<Awaited<ReturnType<typeof startApp>>['as']>>

for (const fault of lostWorker) {
  t.test(`"${fault[1].slice(0, 40)}…" about a user of a lost worker fails for this user alone`, async (t) => {
    const citus = await startCitus(t)
    const { app, as } = await startApp(t, { DATABASE_URL: citus.url })
    const [alice, bob] = [await as('alice'), await as('bob')]
    for (const user of [alice, bob]) {
      await Promise.all(range(10).map((id) => user.create({ id, name: 'Fern' })))
    }

    // Without Citus the readiness probe reads the plants of the user ''. On Citus the probe needs no worker,
    // so the service stays ready although the worker of '' is lost.
    citus.lose(['alice', ''], fault)
    t.same(await sendTogether(alice, bob), [Array(30).fill(50301), range(10).flatMap(() => [200, 200, 204])])
    t.equal((await app.inject('/readyz')).statusCode, 200)
  })
}

t.test('a list that needs a frozen worker fails with 50304, as do the lists behind it', async (t) => {
  const citus = await startCitus(t)
  const { app, as, log } = await startApp(t, { DATABASE_URL: citus.url, STATEMENT_TIMEOUT: '1s' })
  const [alice, bob] = [await as('alice'), await as('bob')]
  for (const user of [alice, bob]) await untilFast(user.list)

  const isFrozen = citus.freeze(['alice'])
  const first = alice.list()
  await isFrozen
  const lost = [first, bob.list()]
  t.equal((await bob.create({ id: 1, name: 'Fern' })).statusCode, 200)
  while (!log.some((line) => line.includes('replacing connections'))) await delay(10)
  t.same((await bob.list()).json(), [{ name: 'Fern' }])
  t.equal((await app.inject('/readyz')).statusCode, 200)
  t.equal(await Promise.race([...lost, 'still pending']), 'still pending')
  t.same((await Promise.all(lost)).map((list) => list.json().error), [50304, 50304])
})

t.test('migrate down finds the plants of a distributed table', async (t) => {
  const { url } = await startCitus(t)
  t.same(await migrate(url, 'down'), ['0002_tokens'])
  await sql(url, "insert into plants (owner, id, name) values ('alice', 1, 'Fern')")
  const message = 'Undoing 0001_plants would delete data from plants. Add --with-data to allow that.'
  await t.rejects(migrate(url, 'down'), { message })
  await sql(url, 'delete from plants')
  t.same(await migrate(url, 'down'), ['0001_plants'])
})

const change = 'alter table plants drop column note; alter table plants add column remark text;'
const downSections: Array<[down: string, result: object]> = [
  [change, { code: 1, stderr: 'cannot insert multiple commands into a prepared statement\n' }],
  [`do $$ begin ${change} end $$;`, { code: 0, stderr: '' }]
]

t.test('a Down section of two statements changes nothing, and works as a `do` block', async (t) => {
  const { url: DATABASE_URL } = await startCitus(t)
  const folder = t.testdir()
  const { run } = await copyProgram(folder)
  const writeMigration = (down: string) => writeFile(join(folder, 'migrations/9000_note.sql'),
    `-- Up Migration\n\nalter table plants add note text;\n\n-- Down Migration\n\n${down}\n`)
  const fieldsOf = async () => Object.keys((await sql(DATABASE_URL, 'table plants'))[0] as object).slice(5)
  await sql(DATABASE_URL, "insert into plants (owner, id, name) values ('alice', 1, 'Fern')")
  await writeMigration(change)
  t.match(await run(['migrate'], { DATABASE_URL }), { code: 0, stdout: 'up 9000_note\n' })
  for (const [down, result] of downSections) {
    await writeMigration(down)
    t.match(await run(['migrate', 'down', '--yes', '--with-data'], { DATABASE_URL }), result)
    t.same(await fieldsOf(), [down === change ? 'note' : 'remark'])
  }
})
