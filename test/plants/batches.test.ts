import { setTimeout as delay } from 'node:timers/promises'
import pg from 'pg'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql, waitingForLocks } from '../support/database.ts'
import { startHeldUp } from '../support/held-up.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (answers: Array<{ statusCode: number }>) => answers.map(({ statusCode }) => statusCode)

/** How many plants each statement has stored, the smallest number first. */
async function sizesOfStatements (url: string): Promise<number[]> {
  return (await sql(url, 'select count(*)::int as size from plants group by xmin order by 1')).map(({ size }) => size as number)
}

const small = (count: number) => range(count).map((id) => ({ id, name: `plant ${id}` }))

for (const [WRITE_BATCH, sizes] of Object.entries({ 1: range(21).map(() => 1), 5: [1, 5, 5, 5, 5], 500: [1, 20] })) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} what waits is written by statements of ${sizes.at(-1)}`, async (t) => {
    const { begin, letGo, url, alice } = await startHeldUp(t, { WRITE_BATCH })
    const answers = await begin(...small(21).map((plant) => () => alice.create(plant)))
    await letGo()
    t.strictSame(statuses(await Promise.all(answers)), range(21).map(() => 200))
    t.strictSame(await sizesOfStatements(url), sizes)
    t.strictSame((await alice.list()).json(), small(21).map(({ name }) => ({ name })))
  })
}

t.test('what waits is deleted together, each plant once', async (t) => {
  const { begin, letGo, alice } = await startHeldUp(t)
  await Promise.all(small(10).map((plant) => alice.create(plant)))
  const answers = await begin(...[0, 1, 2, 2, 77, 0, 3].map((id) => () => alice.delete(id)))
  await letGo()
  t.strictSame(statuses(await Promise.all(answers)), [204, 204, 204, 404, 404, 404, 204])
  t.strictSame((await alice.list()).json(), small(10).slice(4).map(({ name }) => ({ name })))
})

t.test('large plants share statements of their own, up to a million characters', async (t) => {
  const { begin, letGo, url, alice } = await startHeldUp(t, { BODY_LIMIT: '2000000' })
  const plants = [
    { id: 0, name: 'in the first statement' },
    { id: 1, name: 'n'.repeat(500_000) },
    { id: 2, name: 'small' },
    { id: 3, name: 'n'.repeat(100_000), tag: 't'.repeat(300_000) },
    { id: 4, name: 'n'.repeat(600_000) },
    { id: 5, name: 'n'.repeat(1_500_000) },
    { id: 6, name: 'small' }
  ]
  const answers = await begin(...plants.map((plant) => () => alice.create(plant)))
  await letGo()
  t.strictSame(statuses(await Promise.all(answers)), range(7).map(() => 200))
  const together = await sql(url, 'select array_agg(id::int) as ids from plants group by xmin')
  t.strictSame(together.map(({ ids }) => (ids as number[]).sort().join()).sort(), ['0', '1', '2,6', '3,4', '5'])
})

t.test('what would have to wait behind MAX_WAITING others is refused at once', async (t) => {
  const { begin, letGo, alice, log } = await startHeldUp(t, { MAX_WAITING: '3' })
  const answers = await begin(...small(5).map((plant) => () => alice.create(plant)))
  const refused = await answers[4]
  t.equal(refused?.statusCode, 503)
  t.strictSame(refused?.json(), { error: 50302, message: 'The service has more work than it can do.' })
  t.match(refused?.headers, { 'retry-after': '1' })
  const [line, ...further] = log.map((line) => JSON.parse(line)).filter(({ level }) => /warn|error|fatal/.test(level))
  t.match(line, { level: 'warn', error: 50302, err: undefined })
  t.strictSame(further, [])
  await letGo()
  t.strictSame(statuses(await Promise.all(answers)), [200, 200, 200, 200, 503])
  t.strictSame((await alice.list()).json(), small(4).map(({ name }) => ({ name })))
})

t.test('a plant that the database refuses takes none down with it', async (t) => {
  const { begin, letGo, alice, url, log } = await startHeldUp(t)
  await sql(url, 'alter table plants add constraint plants_no_weeds check (name <> \'weed\')')
  const answers = await begin(...['Fern', 'Ivy', 'weed', 'Monstera'].map((name, id) => () => alice.create({ id, name })))
  await letGo()
  t.strictSame(statuses(await Promise.all(answers)), [200, 200, 500, 200])
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }, { name: 'Ivy' }, { name: 'Monstera' }])
  t.match(log.map((line) => JSON.parse(line)).filter(({ level }) => level === 'error'), [{ err: { code: '23514', constraint: 'plants_no_weeds' } }])
})

t.test('what was sent on a connection that is lost may have happened: it is not sent again', async (t) => {
  const { begin, letGo, alice, url, client, findWaiting } = await startHeldUp(t)
  const [first, ...others] = await begin(...small(5).map((plant) => () => alice.create(plant)))
  // Locks are given in turn: to the first plant, to this one, and then to the other plants.
  const next = new pg.Client(url)
  await next.connect()
  t.teardown(() => next.end())
  const locked = next.query('begin; lock table plants in exclusive mode')
  while ((await client.query(waitingForLocks)).rowCount !== 2) await delay(10)
  await letGo()
  t.equal((await first)?.statusCode, 200)
  await locked

  await client.query('select pg_terminate_backend($1)', [await findWaiting()])
  for (const answer of await Promise.all(others)) {
    t.equal(answer.statusCode, 503)
    t.match(answer.json(), { error: 50301 })
  }
  await next.query('commit')
  t.strictSame((await alice.list()).json(), [{ name: 'plant 0' }])
  t.equal((await alice.create({ id: 1, name: 'Ivy' })).statusCode, 200)
})

t.test('a write that hangs on a row somebody else has locked does not hold up the others for long', async (t) => {
  const { begin, letGo, alice } = await startHeldUp(t, {}, 'insert into plants (owner, id, name) values (\'alice\', 1, \'Monstera\')')
  const [hanging, ...others] = await begin(() => alice.create({ id: 1, name: 'Ivy' }), () => alice.create({ id: 2, name: 'Fern' }), () => alice.create({ id: 3, name: 'Moss' }))
  t.strictSame(statuses(await Promise.all(others)), [200, 200])
  await letGo()
  t.equal((await hanging)?.statusCode, 400)
  t.strictSame((await alice.list()).json(), [{ name: 'Monstera' }, { name: 'Fern' }, { name: 'Moss' }])
})

for (const verb of ['creates', 'deletes']) {
  t.test(`a batch of ${verb} locks its plants in the order of their key`, async (t) => {
    const { as, url } = await startApp(t, { STATEMENT_TIMEOUT: '1m' })
    const alice = await as('alice')
    const ids = [3, 2, 1, 0]
    if (verb === 'deletes') for (const id of ids) await alice.create({ id, name: 'Ivy' })
    const act = (id: number) => verb === 'creates' ? alice.create({ id, name: 'Ivy' }) : alice.delete(id)
    const lock = (...ids: number[]) => verb === 'creates'
      ? `insert into plants select 'alice', id, 'Fern' from unnest(array[${ids.join()}]) as id`
      : `select from plants where id in (${ids.join()}) for update`
    const client = new pg.Client(url)
    await client.connect()
    t.teardown(() => client.end())
    await client.query(`begin; ${lock(0, 2)}`)
    // The first waits; after a while the others go as one batch, and wait for 2 with 1 in hand, but not 3.
    const answers = [0, 3, 2, 1].map(act)
    while ((await client.query(waitingForLocks)).rowCount !== 2) await delay(10)
    await t.resolves(client.query(`set local lock_timeout = '1s'; ${lock(3)}`))
    await client.query('rollback')
    for (const { statusCode } of await Promise.all(answers)) t.equal(statusCode, verb === 'creates' ? 200 : 204)
  })
}
