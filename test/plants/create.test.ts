import { subscribe, unsubscribe } from 'node:diagnostics_channel'
import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t, { type Test } from 'tap'
import { startApp } from '../support/app.ts'
import { sql, waitingForLocks } from '../support/database.ts'
import { runInKeyOrder, startBlocked } from '../support/blocked.ts'

const taken = { error: 40014, message: 'You already have a plant with this id.' }

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)
const small = (count: number) => range(count).map((id) => ({ id, name: `plant ${id}` }))

/** Returns the number of plants that each statement has stored. */
async function sizesOfStatements (url: string): Promise<number[]> {
  const sizes = await sql(url, 'select count(*)::int as size from plants group by xmin order by 1')
  return sizes.map(({ size }) => size as number)
}

// Single statements (1) and batches (7 and 500) must give the same responses.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`WRITE_BATCH=${WRITE_BATCH}`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })

    t.test('a create with a taken id is rejected and does not change the existing plant', async (t) => {
      const dave = await as('dave')
      await dave.create({ id: 1, name: 'Monstera', tag: 'first' })
      const second = await dave.create({ id: 1, name: 'Ivy' })
      t.strictSame({ status: second.statusCode, body: second.json() }, { status: 400, body: taken })
      t.strictSame((await dave.list()).json(), [{ name: 'Monstera', tag: 'first' }])
      t.equal((await dave.delete(1)).statusCode, 204)
      t.equal((await dave.delete(1)).statusCode, 404)
      const third = await dave.create({ id: 1, name: 'Ivy' })
      t.equal(third.statusCode, 200, 'the id is free again after the delete')
    })

    t.test('exactly one of 50 concurrent creates with one id succeeds and is stored', async (t) => {
      const erin = await as('erin')
      const creates = range(50).map((index) => erin.create({ id: 1, name: `plant ${index}` }))
      const responses = await Promise.all(creates)
      const winners = responses.filter(({ statusCode }) => statusCode === 200)
      t.equal(winners.length, 1)
      const losers = responses.filter(({ statusCode }) => statusCode === 400)
      t.strictSame(losers.map((response) => response.json()), range(49).map(() => taken))
      t.strictSame((await erin.list()).json(), winners.map((response) => response.json()))
    })
  })
}

/** Resolves when `count` more requests have reached their handlers. */
function handlersStarted (t: Test, count: number): Promise<void> {
  const channel = 'tracing:fastify.request.handler:start'
  return new Promise((resolve) => {
    const countDown = () => { if (--count === 0) resolve() }
    subscribe(channel, countDown)
    t.teardown(() => unsubscribe(channel, countDown))
  })
}

const sizeLimits = [['1', 26, 1], ['5', 26, 5], ['500', 26, 25], ['9999', 600, 512]] as const
for (const [WRITE_BATCH, plants, largest] of sizeLimits) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} a statement stores at most ${largest} plants`, async (t) => {
    const wanted = small(plants)
    const settings = { WRITE_BATCH, STATEMENT_TIMEOUT: '6s' }
    const { sendBlocked, unblock, url, alice } = await startBlocked(t, settings)
    const [first, ...others] = wanted.map((plant) => () => alice.create(plant))
    const [held] = await sendBlocked(first as typeof others[0])
    // `sendBlocked` sends requests one by one. On a busy machine some would expire before the last is sent.
    const started = handlersStarted(t, others.length)
    const queued = others.map((create) => create())
    await started
    await unblock()
    t.strictSame(statuses(await Promise.all([held as typeof queued[0], ...queued])), wanted.map(() => 200))
    const sizes = await sizesOfStatements(url)
    t.equal(sizes.reduce((sum, size) => sum + size), plants)
    t.ok(Math.max(...sizes) <= largest, sizes.join())
    // If a batch takes over 1 s, the service starts another. So a busy machine may need more statements.
    t.ok(largest === 1 || sizes.length < plants / 2, sizes.join())
    t.strictSame((await alice.list()).json(), wanted.map(({ name }) => ({ name })))
  })
}

t.test('a create is rejected at once when MAX_QUEUED others are queued', async (t) => {
  const { sendBlocked, unblock, alice, log } = await startBlocked(t, { MAX_QUEUED: '3' })
  const responses = await sendBlocked(...small(5).map((plant) => () => alice.create(plant)))
  const rejected = await responses[4]
  t.equal(rejected?.statusCode, 503)
  t.strictSame(rejected?.json(), { error: 50302, message: 'The service has more work than it can do.' })
  t.match(rejected?.headers, { 'retry-after': '1' })
  const lines = log.map((line) => JSON.parse(line))
  const [line, ...further] = lines.filter(({ level }) => /warn|error|fatal/.test(level))
  t.match(line, { level: 'warn', error: 50302, err: undefined })
  t.strictSame(further, [])
  await unblock()
  t.strictSame(statuses(await Promise.all(responses)), [200, 200, 200, 200, 503])
  t.strictSame((await alice.list()).json(), small(4).map(({ name }) => ({ name })))
})

t.test('two creates with a taken id in a batch are rejected, even when the id becomes free', async (t) => {
  const { sendBlocked, unblock, alice, url, client } = await startBlocked(t)
  await alice.create({ id: 1, name: 'Fern' })
  // This trigger delays an insert of Moss until the test has deleted Fern, which has the same id.
  await sql(url, `
    create function wait () returns trigger language plpgsql as
      $$ begin perform pg_advisory_xact_lock(1); return new; end $$;
    create trigger wait before insert on plants
      for each row when (new.name = 'Moss') execute function wait()`)
  await client.query('select pg_advisory_lock(1)')
  const plants = [{ id: 2, name: 'Oak' }, { id: 1, name: 'Ivy' }, { id: 1, name: 'Moss' }]
  const responses = await sendBlocked(...plants.map((plant) => () => alice.create(plant)))
  await unblock()
  const all = Promise.all(responses)
  const isOver = all.then(() => true)
  const isWaiting = async () => (await client.query(waitingForLocks)).rowCount !== 0
  while (!await isWaiting() && !await Promise.race([isOver, delay(10, false)]));
  await sql(url, 'delete from plants where id = 1')
  await client.query('select pg_advisory_unlock(1)')
  t.strictSame(statuses(await all), [200, 400, 400])
  t.strictSame((await alice.list()).json(), [{ name: 'Oak' }])
})

t.test('a plant that the database rejects does not make the rest of its batch fail', async (t) => {
  const { sendBlocked, unblock, alice, url, log } = await startBlocked(t)
  await sql(url, 'alter table plants add constraint plants_no_weeds check (name <> \'weed\')')
  const names = ['Fern', 'Ivy', 'weed', 'Monstera']
  const responses = await sendBlocked(...names.map((name, id) => () => alice.create({ id, name })))
  await unblock()
  t.strictSame(statuses(await Promise.all(responses)), [200, 200, 500, 200])
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }, { name: 'Ivy' }, { name: 'Monstera' }])
  const errors = log.map((line) => JSON.parse(line)).filter(({ level }) => level === 'error')
  t.match(errors, [{ err: { code: '23514', constraint: 'plants_no_weeds' } }])
})

t.test('a create whose connection is lost has an unknown outcome and is not sent again', async (t) => {
  const { sendBlocked, unblock, alice, url, client, findBlocked } = await startBlocked(t)
  const [first, ...others] = await sendBlocked(...small(5).map((plant) => () => alice.create(plant)))
  // PostgreSQL grants the lock to the first create, then to the client `next`, then to the other creates.
  const next = new pg.Client(url)
  await next.connect()
  t.teardown(() => next.end())
  const locked = next.query('begin; lock table plants in exclusive mode')
  while ((await client.query(waitingForLocks)).rowCount !== 2) await delay(10)
  await unblock()
  t.equal((await first)?.statusCode, 200)
  await locked

  await client.query('select pg_terminate_backend($1)', [await findBlocked()])
  for (const response of await Promise.all(others)) {
    t.equal(response.statusCode, 503)
    t.match(response.json(), { error: 50301 })
  }
  await next.query('commit')
  t.strictSame((await alice.list()).json(), [{ name: 'plant 0' }])
  t.equal((await alice.create({ id: 1, name: 'Ivy' })).statusCode, 200)
})

t.test('a create that waits for a locked row does not delay others for long', async (t) => {
  const { sendBlocked, unblock, alice } = await startBlocked(t, {},
    "insert into plants (owner, id, name) values ('alice', 1, 'Monstera')")
  const [hanging, ...others] = await sendBlocked(
    ...['Ivy', 'Fern', 'Moss'].map((name, index) => () => alice.create({ id: index + 1, name })))
  t.strictSame(statuses(await Promise.all(others)), [200, 200])
  await unblock()
  t.equal((await hanging)?.statusCode, 400)
  t.strictSame((await alice.list()).json(), [{ name: 'Monstera' }, { name: 'Fern' }, { name: 'Moss' }])
})

t.test('a batch of creates locks its plants in the order of the primary key', async (t) => {
  const { as, url } = await startApp(t, { STATEMENT_TIMEOUT: '6s' })
  const alice = await as('alice')
  const responses = await runInKeyOrder(t, url, (id) => alice.create({ id, name: 'Ivy' }), (ids) =>
    `insert into plants select 'alice', id, 'Fern' from unnest(array[${ids.join()}]) as id`)
  t.strictSame(statuses(responses), [200, 200, 200, 200])
})

t.test('a slow statement and a full disk have errors of their own', async (t) => {
  const app = await startApp(t, { STATEMENT_TIMEOUT: '300ms' })
  const alice = await app.as('alice')
  const creates = async (id: number) => {
    const response = await alice.create({ id, name: 'Monstera' })
    return { status: response.statusCode, body: response.json(), retryAfter: response.headers['retry-after'] }
  }
  const fails = (body: string) => sql(app.url, `create or replace function fail () returns trigger
    language plpgsql as $$ begin ${body} end $$`)
  await fails('perform pg_sleep(1); return new;')
  await sql(app.url, 'create trigger fail before insert on plants for each row execute function fail()')
  const slow = { error: 50304, message: 'The database did not respond in time.' }
  t.strictSame(await creates(1), { status: 503, body: slow, retryAfter: '1' })

  await fails('raise exception \'could not extend file\' using errcode = \'disk_full\';')
  const full = { error: 50305, message: 'The database has no room to store anything.' }
  t.strictSame(await creates(2), { status: 503, body: full, retryAfter: '1' })
  t.strictSame((await alice.list()).json(), [])
})
