import t from 'tap'
import { startApp } from '../support/app.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const notFound = { error: 40402, message: 'You have no plant with this id.' }

// Single statements (1) and batches (7 and 500) must give the same responses.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`WRITE_BATCH=${WRITE_BATCH}`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })

    t.test('users neither see nor delete each other\'s plants, and may use the same ids', async (t) => {
      const alice = await as('alice')
      const bob = await as('bob')
      const hers = await alice.create({ id: 1, name: 'Monstera', tag: 'hers' })
      t.strictSame(hers.json(), { name: 'Monstera', tag: 'hers' })
      t.strictSame((await bob.create({ id: 1, name: 'Ivy' })).json(), { name: 'Ivy' })
      await bob.create({ id: 2, name: 'Fern' })
      t.strictSame((await alice.list()).json(), [{ name: 'Monstera', tag: 'hers' }])
      t.strictSame((await bob.list()).json(), [{ name: 'Ivy' }, { name: 'Fern' }])

      const another = await alice.delete(2)
      const absent = await alice.delete(3)
      t.strictSame({ status: another.statusCode, body: another.json() }, { status: 404, body: notFound })
      t.equal(absent.body, another.body, 'another user\'s plant counts as missing')
      t.equal((await bob.delete(1)).statusCode, 204)
      t.strictSame((await alice.list()).json(), [{ name: 'Monstera', tag: 'hers' }])
      t.strictSame((await bob.list()).json(), [{ name: 'Fern' }])
    })

    t.test('users and ids that look alike when joined are not confused', async (t) => {
      const names = ['carol', '1carol', '1 carol', 'carol1', 'carol 1']
      const users = await Promise.all(names.map((name) => as(name)))
      // Make the service cache the tokens, so that the creates share batches.
      await Promise.all(users.map((user) => user.list()))
      await Promise.all(users.flatMap((user, index) =>
        [1, 11].map((id) => user.create({ id, name: `${index}` }))))
      for (const [index, user] of users.entries()) {
        t.strictSame((await user.list()).json(), [{ name: `${index}` }, { name: `${index}` }])
      }
    })

    t.test('400 concurrent creates by two users are all stored, each for its own user only', async (t) => {
      const users = [await as('grace'), await as('heidi')]
      const plantAt = (index: number) =>
        ({ name: `plant ${index}`, ...index % 3 === 0 && { tag: `${index}` } })
      const responses = await Promise.all(range(400).map((index) =>
        users[index % 2]?.create({ id: Math.floor(index / 2), ...plantAt(index) })))
      t.strictSame(responses.filter((response) => response?.statusCode !== 200), [])
      for (const [which, user] of users.entries()) {
        t.strictSame((await user.list()).json(), range(200).map((id) => plantAt(2 * id + which)))
      }
      const deletes = await Promise.all(range(200).map((id) => users[0]?.delete(id)))
      t.ok(deletes.every((response) => response?.statusCode === 204))
      t.strictSame((await users[0]?.list())?.json(), [])
      t.equal((await users[1]?.list())?.json().length, 200)
    })
  })
}
