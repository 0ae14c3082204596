import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { sql, waitingForLocks } from '../support/database.ts'
import { runInKeyOrder, startBlocked } from '../support/blocked.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)
const small = (count: number) => range(count).map((id) => ({ id, name: `plant ${id}` }))

// Single statements (1) and batches (7 and 500) must give the same responses.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} one of 50 concurrent deletes of a plant succeeds`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })
    const frank = await as('frank')
    await frank.create({ id: 1, name: 'Monstera' })
    const responses = await Promise.all(range(50).map(() => frank.delete(1)))
    t.strictSame(responses.map(({ statusCode }) => statusCode).sort(), [204, ...range(49).map(() => 404)])
  })
}

t.test('queued deletes share a batch, and each plant is deleted once', async (t) => {
  const { sendBlocked, unblock, alice } = await startBlocked(t)
  await Promise.all(small(10).map((plant) => alice.create(plant)))
  const responses = await sendBlocked(...[0, 1, 2, 2, 77, 0, 3].map((id) => () => alice.delete(id)))
  await unblock()
  t.strictSame(statuses(await Promise.all(responses)), [204, 204, 204, 404, 404, 404, 204])
  t.strictSame((await alice.list()).json(), small(10).slice(4).map(({ name }) => ({ name })))
})

async function startWithPlants (t: Test) {
  const app = await startApp(t, { STATEMENT_TIMEOUT: '6s' })
  const alice = await app.as('alice')
  for (const id of [3, 2, 1, 0]) await alice.create({ id, name: 'Ivy' })
  return { ...app, alice }
}

t.test('a batch of deletes locks its plants in the order of the primary key', async (t) => {
  const { alice, url } = await startWithPlants(t)
  const responses = await runInKeyOrder(t, url, (id) => alice.delete(id), (ids) =>
    `select from plants where id in (${ids.join()}) and owner = 'alice' for update`)
  t.strictSame(statuses(responses), [204, 204, 204, 204])
})

t.test('after a deadlock each plant of a batch of deletes is deleted by itself', async (t) => {
  const { alice, url } = await startWithPlants(t)
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  // PostgreSQL aborts the transaction that first reaches its deadlock_timeout. This client waits 1 min, so
  // PostgreSQL aborts the service's transaction.
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
  const responses = [3, 2].map((id) => alice.delete(id))
  await areWaiting(2)
  t.equal((await lock([2])).rowCount, 1, 'the batch has released its lock on 2')
  await client.query('rollback')
  t.strictSame(statuses(await Promise.all([first, ...responses])), [204, 204, 204])
  const count = 'select deadlocks::int from pg_stat_database where datname = current_database()'
  while ((await sql(url, count))[0]?.deadlocks !== 1) await delay(10)
})

t.test('a delete that waits too long for a locked table gets the error of a slow database', async (t) => {
  const { as, url } = await startApp(t, { STATEMENT_TIMEOUT: '500ms' })
  const alice = await as('alice')
  await Promise.all(small(20).map((plant) => alice.create(plant)))
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants in access exclusive mode')
  // The batch times out. Then the service retries each delete with a statement that PostgreSQL cannot prepare
  // while the table is locked. The first retry times out. The others fail: no statement is prepared.
  const responses = await Promise.all(range(20).map((id) => alice.delete(id)))
  await client.query('rollback')
  t.strictSame(responses.map((response) => response.json().error), Array(20).fill(50304))
})
