import pg from 'pg'
import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql, waitingForLocks } from '../support/database.ts'

t.test('the log has a line for each change of readiness', async (t) => {
  const { app, log, url } = await startApp(t)
  const probe = async () => (await app.inject('/readyz')).statusCode
  // Ignore warnings of event-loop lag, which a busy machine may cause.
  const lines = () =>
    log.splice(0).map((line) => JSON.parse(line)).filter(({ msg }) => !msg.includes('event loop'))

  t.strictSame([await probe(), await probe(), lines()], [200, 200, []])
  await sql(url, 'alter table tokens rename to elsewhere')
  t.strictSame([await probe(), await probe()], [503, 503])
  const [notReady, ...further] = lines()
  t.match(notReady, { level: 'warn', msg: 'not ready', err: { message: /relation "tokens" does not exist/ } })
  t.strictSame(further, [])
  await sql(url, 'alter table elsewhere rename to tokens')
  t.strictSame([await probe(), await probe()], [200, 200])
  t.match(lines(), [{ level: 'info', msg: 'ready again' }])
})

t.test('concurrent probes share one statement', async (t) => {
  const { app, as, url } = await startApp(t, { MAX_QUEUED: '5' })
  const alice = await as('alice')
  await alice.list()
  const client = new pg.Client(url)
  await client.connect()
  t.teardown(() => client.end())
  await client.query('begin; lock table plants')
  const probes = Array.from({ length: 20 }, () => app.inject('/readyz'))
  while ((await client.query(waitingForLocks)).rowCount === 0);
  const created = alice.create({ id: 1, name: 'Monstera' })
  while ((await client.query(waitingForLocks)).rowCount === 1);
  await client.query('commit')
  t.equal((await created).statusCode, 200)
  const statuses = new Set((await Promise.all(probes)).map(({ statusCode }) => statusCode))
  // All probes get the status of the same statement: 200, or 503 if the statement has timed out.
  t.equal(statuses.size, 1)
})

t.test('a starting service is not ready, even when the tables exist', async (t) => {
  const { app, lifecycle } = await startApp(t)
  t.equal((await app.inject('/readyz')).statusCode, 200)
  Object.assign(lifecycle, { starting: true })
  t.match((await app.inject('/readyz')).json(), { error: 50301 })
})
