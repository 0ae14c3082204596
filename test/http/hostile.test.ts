import t from 'tap'
import { startApp } from '../support/app.ts'
import { costlyBodies as bodies } from '../support/costly-bodies.ts'
import { sql } from '../support/database.ts'
import { exchange } from '../support/raw.ts'
import { isError } from '../support/error-response.ts'

const { as, url, listen } = await startApp(t)
const alice = await as('alice')
const address = await listen()

t.test('the most costly bodies get the same responses as cheap ones', async (t) => {
  await alice.create({ id: 0, name: 'warm' })
  for (const [title, [body, ...refusal]] of Object.entries(bodies)) {
    const { user } = process.cpuUsage()
    const response = await alice.create(body)
    const spent = process.cpuUsage({ user, system: 0 }).user / 1000
    if (refusal.length === 0) t.equal(response.statusCode, 200, title)
    else isError(t, response, refusal[0], refusal[1], title)
    t.comment(`${title}: ${spent.toFixed(1)} ms`)
  }
  t.same(await sql(url, 'select id::int, char_length(name) as length from plants order by plants.id'), [
    { id: 0, length: 4 }, { id: 1, length: 1 }, { id: 2, length: 65526 }, { id: 3, length: 65526 }, { id: 4, length: 131040 }, { id: 5, length: 131052 }, { id: 6, length: 32758 },
    { id: 7, length: 21842 }, { id: 8, length: 10921 }, { id: 9, length: 21842 }, { id: 10, length: 131049 }
  ])
})

t.test('other requests are served while such bodies arrive', async (t) => {
  const some = Object.entries(bodies).filter((_, index) => index % 3 === 0)
  await Promise.all(some.map(async ([title, [body]]) => {
    const bytes = Buffer.from(body)
    const beside = async () => {
      const listed = await fetch(`${address}/plants?limit=1`, { headers: { authorization: alice.authorization } })
      t.same(await listed.json(), [{ name: 'warm' }])
    }
    const [response] = await exchange(address, [
      `POST /plants HTTP/1.1\r\nHost: x\r\nAuthorization: ${alice.authorization}\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: ${bytes.length}\r\n\r\n`,
      bytes.subarray(0, -1), beside, bytes.subarray(-1)
    ])
    t.equal(response?.status, 400, title)
  }))
})
