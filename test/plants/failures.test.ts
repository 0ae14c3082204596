import t, { type Test } from 'tap'
import { startApp, type TestApp } from '../support/app.ts'
import { sql } from '../support/database.ts'

const internal = { error: 50001, message: 'Something went wrong inside the service.' }
const unavailable = { error: 50301, message: 'The database cannot be reached.' }

/** Runs the SQL in `breakage`, then calls every operation. Returns the responses with their log lines. */
async function callAll (t: Test, { as, log, url }: TestApp, breakage: string) {
  const alice = await as('alice')
  await alice.create({ id: 1, name: 'Monstera' })
  await sql(url, breakage)
  const responses = []
  const operations = [() => alice.create({ id: 2, name: 'Ivy' }), () => alice.list(), () => alice.delete(1)]
  for (const operation of operations) {
    const before = log.length
    const response = await operation()
    t.match(response.headers['content-type'], /^application\/json/)
    const lines = log.slice(before).map((line) => JSON.parse(line))
    responses.push({
      status: response.statusCode,
      body: response.json(),
      retryAfter: response.headers['retry-after'],
      reqId: response.headers['x-request-id'],
      line: lines.find(({ level }) => level === 'error')
    })
  }
  return responses
}

t.test('an unexpected database error is logged in full and not shown to the client', async (t) => {
  const app = await startApp(t)
  const responses = await callAll(t, app, 'alter table plants rename column owner to username')
  for (const { status, body, retryAfter, line, reqId } of responses) {
    t.strictSame({ status, body, retryAfter }, { status: 500, body: internal, retryAfter: undefined })
    const message = /^column .*owner.* does not exist$/
    t.match(line, { reqId, err: { type: 'DatabaseError', message, code: '42703', stack: /\n +at / } })
  }
})

t.test('a missing table counts as an unavailable database', async (t) => {
  const app = await startApp(t)
  const responses = await callAll(t, app, 'alter table plants rename to shrubs')
  for (const { status, body, retryAfter } of responses) {
    t.strictSame({ status, body, retryAfter }, { status: 503, body: unavailable, retryAfter: '1' })
  }
  t.match(responses[0]?.line.err, { message: 'relation "plants" does not exist', code: '42P01' })
})
