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
  const operations = [() => alice.create({ id: 2, name: 'Ivy' }), () => alice.list(), () => alice.delete(1)]
  for (const operation of operations) {
    const before = log.length
    const answer = await operation()
    t.match(answer.headers['content-type'], /^application\/json/)
    const lines = log.slice(before).map((line) => JSON.parse(line))
    answers.push({
      status: answer.statusCode,
      body: answer.json(),
      retryAfter: answer.headers['retry-after'],
      reqId: answer.headers['x-request-id'],
      line: lines.find(({ level }) => level === 'error')
    })
  }
  return answers
}

t.test('when its table is broken the body reveals nothing, and the log tells everything', async (t) => {
  const app = await startApp(t)
  const answers = await callAll(t, app, 'alter table plants rename column owner to keeper')
  for (const { status, body, retryAfter, line, reqId } of answers) {
    t.strictSame({ status, body, retryAfter }, { status: 500, body: internal, retryAfter: undefined })
    const message = /^column .*owner.* does not exist$/
    t.match(line, { reqId, err: { type: 'DatabaseError', message, code: '42703', stack: /\n +at / } })
  }
})

t.test('a table that is not there is a database that is not ready', async (t) => {
  const app = await startApp(t)
  const answers = await callAll(t, app, 'alter table plants rename to shrubs')
  for (const { status, body, retryAfter } of answers) {
    t.strictSame({ status, body, retryAfter }, { status: 503, body: unavailable, retryAfter: '1' })
  }
  t.match(answers[0]?.line.err, { message: 'relation "plants" does not exist', code: '42P01' })
})
