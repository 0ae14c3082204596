import t, { type Test } from 'tap'
import { startApp, type TestApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

const internal = { error: 50001, message: 'Something went wrong inside the service.' }
const unavailable = { error: 50301, message: 'The database cannot be reached.' }

/** Every operation, answered all the same, with what the log has of each. */
async function callAll (t: Test, { as, log, url }: TestApp, breakage: string) {
  const alice = await as('alice')
  await alice.create({ id: 1, name: 'Monstera' })
  await sql(url, breakage)
  const answers = []
  for (const operation of [() => alice.create({ id: 2, name: 'Ivy' }), () => alice.list(), () => alice.delete(1)]) {
    const before = log.length
    const answer = await operation()
    t.match(answer.headers['content-type'], /^application\/json/)
    const [line] = log.slice(before).map((line) => JSON.parse(line)).filter(({ level }) => level === 'error')
    answers.push({ status: answer.statusCode, body: answer.json(), retryAfter: answer.headers['retry-after'], line, reqId: answer.headers['x-request-id'] })
  }
  return answers
}

t.test('when its table is broken the body reveals nothing, and the log tells everything', async (t) => {
  const app = await startApp(t)
  const answers = await callAll(t, app, 'alter table plants rename column owner to keeper')
  for (const { status, body, retryAfter, line, reqId } of answers) {
    t.strictSame({ status, body, retryAfter }, { status: 500, body: internal, retryAfter: undefined })
    t.match(line, { reqId, err: { type: 'DatabaseError', message: /^column .*owner.* does not exist$/, code: '42703', stack: /\n +at / } })
  }
})

t.test('a table that is not there is a database that is not ready', async (t) => {
  const app = await startApp(t)
  const answers = await callAll(t, app, 'alter table plants rename to shrubs')
  for (const { status, body, retryAfter } of answers) t.strictSame({ status, body, retryAfter }, { status: 503, body: unavailable, retryAfter: '1' })
  t.match(answers[0]?.line.err, { message: 'relation "plants" does not exist', code: '42P01' })
})

t.test('a statement that takes too long, and a full disk, are told from a database that is away', async (t) => {
  const app = await startApp(t, { STATEMENT_TIMEOUT: '300ms' })
  const alice = await app.as('alice')
  const creates = async (id: number) => {
    const answer = await alice.create({ id, name: 'Monstera' })
    return { status: answer.statusCode, body: answer.json(), retryAfter: answer.headers['retry-after'] }
  }
  const fails = (body: string) => sql(app.url, `create or replace function fail () returns trigger language plpgsql as $$ begin ${body} end $$`)
  await fails('perform pg_sleep(1); return new;')
  await sql(app.url, 'create trigger fail before insert on plants for each row execute function fail()')
  const slow = { error: 50304, message: 'The database did not answer in time.' }
  t.strictSame(await creates(1), { status: 503, body: slow, retryAfter: '1' })

  // As PostgreSQL itself says it.
  await fails('raise exception \'could not extend file\' using errcode = \'disk_full\';')
  const full = { error: 50305, message: 'The database has no room to store anything.' }
  t.strictSame(await creates(2), { status: 503, body: full, retryAfter: '1' })
  t.strictSame((await alice.list()).json(), [])
})
