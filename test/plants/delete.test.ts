import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { sql, waitingForLocks } from '../support/database.ts'
import { runInKeyOrder, startBlocked } from '../support/blocked.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (answers: Array<{ statusCode: number }>) => answers.map(({ statusCode }) => statusCode)
const small = (count: number) => range(count).map((id) => ({ id, name: `plant ${id}` }))

// Single statements and batches must not differ in what they answer.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} of 50 deletes of one plant at once one succeeds`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })
    const frank = await as('frank')
    await frank.create({ id: 1, name: 'Monstera' })
    const answers = await Promise.all(range(50).map(() => frank.delete(1)))
    t.strictSame(answers.map(({ statusCode }) => statusCode).sort(), [204, ...range(49).map(() => 404)])
  })
}

t.test('what waits is deleted together, each plant once', async (t) => {
  const { sendBlocked, unblock, alice } = await startBlocked(t)
  await Promise.all(small(10).map((plant) => alice.create(plant)))
  const answers = await sendBlocked(...[0, 1, 2, 2, 77, 0, 3].map((id) => () => alice.delete(id)))
  await unblock()
  t.strictSame(statuses(await Promise.all(answers)), [204, 204, 204, 404, 404, 404, 204])
  t.strictSame((await alice.list()).json(), small(10).slice(4).map(({ name }) => ({ name })))
})

/** For whom the planner has no reason to read the whole table. */
async function startAmongMany (t: Test) {
  const app = await startApp(t, { STATEMENT_TIMEOUT: '6s' })
  const alice = await app.as('alice')
  for (const id of [3, 2, 1, 0]) await alice.create({ id, name: 'Ivy' })
  await sql(app.url, `insert into plants (owner, id, name) select 'bob', id, 'Fern' from generate_series(1, 10000) as id;
    analyze plants`)
  return { ...app, alice }
}

t.test('a batch of deletes locks its plants in the order of their key', async (t) => {
  const { alice, url } = await startAmongMany(t)
  const answers = await runInKeyOrder(t, url, (id) => alice.delete(id), (ids) =>
    `select from plants where id in (${ids.join()}) and owner = 'alice' for update`)
  t.strictSame(statuses(answers), [204, 204, 204, 204])
})

t.test('of a batch of deletes that PostgreSQL ends for a deadlock each plant is deleted on its own', async (t) => {
  const { alice, url } = await startAmongMany(t)
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  // Who finds the deadlock is ended for it, after a second of waiting: not this one.
  await client.query("set deadlock_timeout = '1min'")
  const lock = (ids: number[]) =>
    client.query(`select from plants where id in (${ids.join()}) and owner = 'alice' for update`)
  const areWaiting = async (processes: number) => {
    while ((await client.query(waitingForLocks)).rowCount !== processes) await delay(10)
  }
  await client.query('begin')
  await lock([0, 3])
  const first = alice.delete(0)
  await areWaiting(1)
  const answers = [3, 2].map((id) => alice.delete(id))
  await areWaiting(2)
  t.equal((await lock([2])).rowCount, 1, 'it had 2 in hand, and lets go of it')
  await client.query('rollback')
  t.strictSame(statuses(await Promise.all([first, ...answers])), [204, 204, 204])
  const count = 'select deadlocks::int from pg_stat_database where datname = current_database()'
  while ((await sql(url, count))[0]?.deadlocks !== 1) await delay(10)
})

t.test('whoever waits for a locked table hears that the database was slow', async (t) => {
  const { as, url } = await startApp(t, { STATEMENT_TIMEOUT: '500ms' })
  const alice = await as('alice')
  await Promise.all(small(20).map((plant) => alice.create(plant)))
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants in access exclusive mode')
  // After the batch each is tried by itself. PostgreSQL waits to prepare the first; the others find it is not.
  const answers = await Promise.all(range(20).map((id) => alice.delete(id)))
  await client.query('rollback')
  t.strictSame(answers.map((answer) => answer.json().error), Array(20).fill(50304))
})
