import t from 'tap'
import { startApp } from '../support/app.ts'
import { costlyBodies as bodies } from '../support/costly-bodies.ts'
import { sql } from '../support/database.ts'
import { exchange } from '../support/raw.ts'
import { isError } from '../support/error-response.ts'

const { as, url, listen } = await startApp(t)
const alice = await as('alice')
const address = await listen()

t.test('the most expensive bodies get the same responses as cheap ones', async (t) => {
  await alice.create({ id: 0, name: 'warm' })
  for (const [title, [body, ...error]] of Object.entries(bodies)) {
    const { user } = process.cpuUsage()
    const response = await alice.create(body)
    const spent = process.cpuUsage({ user, system: 0 }).user / 1000
    if (error.length === 0) t.equal(response.statusCode, 200, title)
    else isError(t, response, error[0], error[1], title)
    t.comment(`${title}: ${spent.toFixed(1)} ms`)
  }
  const accepted = Object.values(bodies).filter(([, ...error]) => error.length === 0)
    .map(([body]) => JSON.parse(body)).map(({ id, name }) => ({ id, length: [...name].length }))
  t.equal(accepted.length, 10)
  t.same(await sql(url, 'select id::int, char_length(name) as length from plants order by plants.id'),
    [{ id: 0, length: 4 }, ...accepted.toSorted((a, b) => a.id - b.id)])
})

t.test('the service handles other requests while expensive bodies arrive', async (t) => {
  const some = Object.entries(bodies).filter((_, index) => index % 3 === 0)
  await Promise.all(some.map(async ([title, [body]]) => {
    const bytes = Buffer.from(body)
    const listMeanwhile = async () => {
      const listed = await fetch(`${address}/plants?limit=1`, {
        headers: { authorization: alice.authorization }
      })
      t.same(await listed.json(), [{ name: 'warm' }])
    }
    const [response] = await exchange(address, [
      `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${alice.authorization}\r\nConnection: close\r\n` +
        `Content-Type: application/json\r\nContent-Length: ${bytes.length}\r\n\r\n`,
      bytes.subarray(0, -1), listMeanwhile, bytes.subarray(-1)
    ])
    t.equal(response?.status, 400, title)
  }))
})
