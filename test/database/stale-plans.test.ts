import t from 'tap'
import { startApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (responses: Array<{ statusCode: number }>) => responses.map(({ statusCode }) => statusCode)

t.test('a changed column type fails no request and does not turn batching off', async (t) => {
  const { app, as, url, log } = await startApp(t, { TOKEN_CACHE_TTL: '0' })
  const alice = await as('alice')
  const act = async (from: number) => {
    const ids = range(20).map((index) => from + index)
    const creates = await Promise.all(ids.map((id) => alice.create({ id, name: 'Fern' })))
    t.strictSame(statuses(creates), ids.map(() => 200))
    t.strictSame(statuses(await Promise.all(ids.map(() => alice.list()))), ids.map(() => 200))
    t.strictSame(statuses(await Promise.all(ids.map((id) => alice.delete(id)))), ids.map(() => 204))
  }
  await act(0)
  await sql(url, `
    alter table plants alter column owner type varchar(500), alter column name type varchar(5000);
    alter table tokens alter column label type varchar(500), alter column username type varchar(255)`)
  t.equal((await app.inject('/readyz')).statusCode, 200)
  await act(100)
  t.strictSame(log.filter((line) => /warn|error/.test(JSON.parse(line).level)), [])
  const last = await sql(url, `select query from pg_stat_activity
    where application_name = 'plant-store' and datname = current_database() and query ~ 'unnest'`)
  t.ok(last.length > 0, 'batches are still used')
})

t.test('a statement that the server has forgotten is prepared again', async (t) => {
  const { database, url } = await startApp(t)
  const one = { name: 'one', text: 'select 1' }
  await database.read(one)
  // Make the server forget the statement, as if a pooler had switched to another server connection.
  await database.read({ name: 'forget', text: 'deallocate one' })
  t.strictSame(await database.read(one), [['1']])
  t.equal((await sql(url, 'select 1')).length, 1)
})
