// Tests creates and deletes: their results, batches and failures.
import { setTimeout as delay } from 'node:timers/promises'
import t from 'tap'
import type { Database } from '../../src/database/database.ts'
import { createPlants } from '../../src/plants/repository.ts'
import { PlantSchema, type NewPlant } from '../../src/plants/schemas.ts'
import { MemoryBudget } from '../../src/scheduling/memory-budget.ts'
import { startApp } from '../support/app.ts'
import { startBlocked } from '../support/blocked.ts'
import { createDatabase, openSession, sql, waitingForLocks } from '../support/database.ts'
import { identityOf } from '../support/identity.ts'
import { matchEach } from '../support/match.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)

t.test('a value of a field is rejected, or listed as the create returned it', async (t) => {
  const url = await createDatabase(t)
  for (const setting of ["timezone to 'Asia/Tokyo'", "datestyle to 'SQL, DMY'"]) {
    await sql(url, `alter database ${new URL(url).pathname.slice(1)} set ${setting}`)
  }
  const { as } = await startApp(t, { DATABASE_URL: url })
  const values = [
    '', ' x ', '1e3', 'infinity', '2026-02-30', '2026-02-30T00:00:00Z', '0000-01-01T00:00:00.000Z',
    '2026-05-01T08:30:00+16:00', '2026-05-01T08:30:00.123456789Z', 0.1, 1e300, -1, true, [], {}
  ]
  for (const [field, { examples }] of Object.entries(PlantSchema.properties)) {
    for (const value of [...examples as unknown[], ...values]) {
      const what = `${field} ${JSON.stringify(value)}`
      const user = await as(what)
      const { statusCode, body } = await user.create({ id: 1, name: 'n', [field]: value })
      t.ok([200, 400].includes(statusCode), what)
      t.equal((await user.list()).body, statusCode === 200 ? `[${body}]` : '[]', what)
    }
  }
})

// Single statements (1) and batches (7 and 500) must give the same responses.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} a write takes effect once, for its own user`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })
    // These users and ids look alike when joined.
    const names = ['carol', '1carol', '1 carol', 'carol1', 'carol 1']
    const users = await Promise.all(names.map((name) => as(name)))
    const ids = [1, 2, 11, 12, 21]
    // Make the service cache the tokens, so that the writes share batches.
    await Promise.all(users.map((user) => user.list()))
    const writes = users.flatMap((user) => ids.flatMap((id) => range(4).map(() => ({ user, id }))))
    const created = await Promise.all(writes.map(async ({ user, id }, copy) =>
      ({ user, id, response: await user.create({ id, name: `copy ${copy}` }) })))
    for (const user of users) {
      const own = created.filter((create) => create.user === user)
      const stored = own.filter(({ response }) => response.statusCode === 200)
      t.strictSame(stored.map(({ id }) => id), ids)
      t.strictSame((await user.list()).json(), stored.map(({ response }) => response.json()))
      const rejected = own.filter((create) => !stored.includes(create))
      t.strictSame(rejected.map(({ response }) => response.json()),
        Array(15).fill({ error: 40014, message: 'You already have a plant with this id.' }))
    }

    const [first, second] = users as [typeof users[0], typeof users[0]]
    const twice = [first, second].flatMap((user) => [...ids, 3, ...ids].map((id) => ({ user, id })))
    const deleted = await Promise.all(twice.map(async ({ user, id }) =>
      ({ user, id, response: await user.delete(id) })))
    const successes = deleted.filter(({ response }) => response.statusCode === 204)
    for (const user of [first, second]) {
      const own = successes.filter((deletion) => deletion.user === user).map(({ id }) => id)
      t.strictSame(own.toSorted((a, b) => a - b), ids)
    }
    const rejected = deleted.filter((deletion) => !successes.includes(deletion))
    t.strictSame(rejected.map(({ response }) => response.json()),
      Array(12).fill({ error: 40402, message: 'You have no plant with this id.' }))
    const counts = await Promise.all(users.map(async (user) => (await user.list()).json().length))
    t.strictSame(counts, [0, 0, 5, 5, 5])
    t.equal((await first.create({ id: 1, name: 'Ivy' })).statusCode, 200)
  })
}

/** Creates plants in one tick. Returns the ids and names that each statement gets, and the results. */
async function statementsFor (writeBatch: number, plants: NewPlant[]) {
  const statements: Array<Array<[id: string, name: string]>> = []
  const database = {
    addProbe () {},
    isDistributed: () => false,
    async write (_statement: unknown, values: string[]) {
      const rows = range(values.length / 4).map((row) => values.slice(4 * row, 4 * row + 4))
      statements.push(rows.map(([_user, id, name]) => [id as string, name as string]))
      return rows
    }
  } as unknown as Database
  const budget = new MemoryBudget(1)
  const config = { WRITE_BATCH: writeBatch, MAX_QUEUED: 1000, BODY_LIMIT: 1000 }
  const { create } = createPlants(database, config, budget)
  const results = await Promise.all(plants.map((plant) => create(identityOf('alice'), plant)))
  return { statements, results }
}

t.test('a statement creates at most WRITE_BATCH plants, and at most 512', async (t) => {
  for (const [writeBatch, sizes] of [[1, [1, 1, 1]], [5, [5, 5, 2]], [9999, [512, 96]]] as const) {
    const count = { 1: 3, 5: 12, 9999: 600 }[writeBatch]
    const { statements } = await statementsFor(writeBatch, range(count).map((id) => ({ id, name: 'Ivy' })))
    t.strictSame(statements.map(({ length }) => length), sizes)
  }
})

t.test('a statement has only the first of several plants with the same id', async (t) => {
  // As numbers, the ids beyond 2^53 would be equal.
  const plants = [
    { id: 2n ** 53n + 1n, name: 'Fern' }, { id: 1, name: 'Ivy' }, { id: 1, name: 'Moss' },
    { id: 2n ** 53n, name: 'Oak' }, { id: 2n ** 53n + 1n, name: 'Yew' }
  ]
  const { statements, results } = await statementsFor(500, plants)
  t.strictSame(statements, [[['1', 'Ivy'], ['9007199254740992', 'Oak'], ['9007199254740993', 'Fern']]])
  t.strictSame(results, [true, true, false, true, false])
})

const { alice, client, findBlocked, log, sendBlocked, unblock, url } =
  await startBlocked(t, { MAX_QUEUED: '3', STATEMENT_TIMEOUT: '6s' })
const listed = async () => (await alice.list()).json().map(({ name }: { name: string }) => name)
const untilBlocked = async (processes: number) => {
  while ((await client.query(waitingForLocks)).rowCount !== processes) await delay(10)
}
const create = (name: string, id: number) => () => alice.create({ id, name })

t.afterEach(() => sql(url, 'delete from plants'))

t.test('a create is rejected at once when MAX_QUEUED others are queued', async (t) => {
  const before = log.length
  const responses = await sendBlocked(...range(5).map((id) => create(`plant ${id}`, id)))
  const rejected = await responses[4]
  t.strictSame(rejected?.json(), { error: 50302, message: 'The service has more work than it can do.' })
  t.match(rejected, { statusCode: 503, headers: { 'retry-after': '1' } })
  const lines = log.slice(before).map((line) => JSON.parse(line))
  matchEach(t, lines.filter(({ error }) => error), [{ level: 'warn', error: 50302, err: undefined }])
  await unblock()
  t.strictSame(statuses(await Promise.all(responses)), [200, 200, 200, 200, 503])
  t.strictSame(await listed(), range(4).map((id) => `plant ${id}`))
})

t.test('a plant that the database rejects does not make the rest of its batch fail', async (t) => {
  await sql(url, 'alter table plants add constraint plants_no_weeds check (name <> \'weed\')')
  const responses = await sendBlocked(...['Fern', 'Ivy', 'weed', 'Monstera'].map(create))
  await unblock()
  t.strictSame(statuses(await Promise.all(responses)), [200, 200, 500, 200])
  t.strictSame(await listed(), ['Fern', 'Ivy', 'Monstera'])
})

t.test('a create whose connection is lost has an unknown outcome and is not sent again', async (t) => {
  const [first, ...others] = await sendBlocked(...['Fern', 'Ivy', 'Moss', 'Monstera'].map(create))
  // PostgreSQL grants the lock to the first create, then to the client `next`, then to the other creates.
  const next = await openSession(t, url)
  const locked = next.query('begin; lock table plants in exclusive mode')
  await untilBlocked(2)
  await unblock()
  t.equal((await first)?.statusCode, 200)
  await locked
  await client.query('select pg_terminate_backend($1)', [await findBlocked()])
  for (const response of await Promise.all(others)) t.match(response.json(), { error: 50301 })
  await next.query('commit')
  t.strictSame(await listed(), ['Fern'])
  t.equal((await alice.create({ id: 1, name: 'Ivy' })).statusCode, 200)
})

t.test('a batch locks its plants in the order of the primary key', async (t) => {
  for (const [act, status, lock] of [
    [(id: number) => alice.create({ id, name: 'Ivy' }), 200, (ids: string) =>
      `insert into plants select 'alice', id, 'Fern' from unnest(array[${ids}]) as id`],
    [alice.delete, 204, (ids: string) =>
      `select from plants where id in (${ids}) and owner = 'alice' for update`]
  ] as const) {
    await client.query(`begin; ${lock('0, 2')}`)
    const first = act(0)
    await untilBlocked(1)
    const batch = [10, 2, 1].map((id) => act(id))
    await untilBlocked(2)
    // A correct batch waits for plant 2 before it locks plant 10, so `client` can lock plant 10. Otherwise
    // `client` gives up after 100 ms, before PostgreSQL looks for deadlocks (after 1 s).
    await t.resolves(client.query(`set local lock_timeout = '100ms'; ${lock('10')}`))
    await client.query('rollback')
    t.strictSame(statuses(await Promise.all([first, ...batch])), Array(4).fill(status))
  }
})

t.test('an error of the database becomes the error that the client gets', async (t) => {
  await sql(url, `create function fail () returns trigger language plpgsql as
    $$ begin raise exception 'private' using errcode = new.name; end $$;
    create trigger fail before insert on plants for each row when (new.id < 0) execute function fail()`)
  const cases = {
    57014: [50304, 'The database did not respond in time.'],
    53100: [50305, 'The database has no room to store anything.'],
    '42P01': [50301, 'The database cannot be reached.'],
    42703: [50001, 'Something went wrong inside the service.']
  }
  for (const [code, [error, message]] of Object.entries(cases)) {
    const response = await alice.create({ id: -1, name: code })
    t.strictSame(response.json(), { error, message })
    t.equal(response.headers['retry-after'], error === 50001 ? undefined : '1')
    t.match(JSON.parse(log.findLast((line) => JSON.parse(line).error === error) as string), {
      level: 'error',
      reqId: response.headers['x-request-id'],
      err: { type: 'DatabaseError', message: 'private', code, stack: /\n +at / }
    })
  }
})

t.test('deletes that wait too long for a locked table get the error of a slow database', async (t) => {
  const { as, url } = await startApp(t, { STATEMENT_TIMEOUT: '500ms' })
  const alice = await as('alice')
  const blocking = await openSession(t, url, 'begin; lock table plants in access exclusive mode')
  // The batch times out. Then the service retries each delete with a statement that PostgreSQL cannot prepare
  // while the table is locked. The first retry times out. The others fail: no statement is prepared.
  const responses = await Promise.all(range(20).map((id) => alice.delete(id)))
  await blocking.query('rollback')
  t.strictSame(responses.map((response) => response.json().error), Array(20).fill(50304))
})
