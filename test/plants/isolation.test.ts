import t from 'tap'
import { startApp } from '../support/app.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const taken = { error: 40014, message: 'You already have a plant with this id.' }
const notFound = { error: 40402, message: 'You have no plant with this id.' }

// Single statements and batches must not differ in what they answer.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`WRITE_BATCH=${WRITE_BATCH}`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })

    t.test('two users neither see nor delete each other\'s plants, nor get in the way of each other\'s ids', async (t) => {
      const alice = await as('alice')
      const bob = await as('bob')
      t.strictSame((await alice.create({ id: 1, name: 'Monstera', tag: 'hers' })).json(), { name: 'Monstera', tag: 'hers' })
      t.strictSame((await bob.create({ id: 1, name: 'Ivy' })).json(), { name: 'Ivy' })
      await bob.create({ id: 2, name: 'Fern' })
      t.strictSame((await alice.list()).json(), [{ name: 'Monstera', tag: 'hers' }])
      t.strictSame((await bob.list()).json(), [{ name: 'Ivy' }, { name: 'Fern' }])

      const another = await alice.delete(2)
      const absent = await alice.delete(3)
      t.strictSame({ status: another.statusCode, body: another.json() }, { status: 404, body: notFound })
      t.equal(absent.body, another.body, 'another\'s plant is a missing one')
      t.equal((await bob.delete(1)).statusCode, 204)
      t.strictSame((await alice.list()).json(), [{ name: 'Monstera', tag: 'hers' }])
      t.strictSame((await bob.list()).json(), [{ name: 'Fern' }])
    })

    t.test('names and ids that look alike together stay apart', async (t) => {
      const users = await Promise.all(['carol', '1carol', '1 carol', 'carol1', 'carol 1'].map((user) => as(user)))
      // With their tokens known, their plants arrive together.
      await Promise.all(users.map((user) => user.list()))
      await Promise.all(users.flatMap((user, index) => [1, 11].map((id) => user.create({ id, name: `${index}` }))))
      for (const [index, user] of users.entries()) {
        t.strictSame((await user.list()).json(), [{ name: `${index}` }, { name: `${index}` }])
      }
    })

    t.test('a taken id is refused, and the plant that has it stays as it is', async (t) => {
      const dave = await as('dave')
      await dave.create({ id: 1, name: 'Monstera', tag: 'first' })
      const second = await dave.create({ id: 1, name: 'Ivy' })
      t.strictSame({ status: second.statusCode, body: second.json() }, { status: 400, body: taken })
      t.strictSame((await dave.list()).json(), [{ name: 'Monstera', tag: 'first' }])
      t.equal((await dave.delete(1)).statusCode, 204)
      t.equal((await dave.delete(1)).statusCode, 404)
      t.equal((await dave.create({ id: 1, name: 'Ivy' })).statusCode, 200, 'and is free again once it is deleted')
    })

    t.test('of 50 simultaneous creates of one id exactly one succeeds, and its plant is the one stored', async (t) => {
      const erin = await as('erin')
      const answers = await Promise.all(range(50).map((index) => erin.create({ id: 1, name: `plant ${index}` })))
      const winners = answers.filter(({ statusCode }) => statusCode === 200)
      t.equal(winners.length, 1)
      t.strictSame(answers.filter(({ statusCode }) => statusCode === 400).map((answer) => answer.json()), range(49).map(() => taken))
      t.strictSame((await erin.list()).json(), winners.map((answer) => answer.json()))
    })

    t.test('of 50 simultaneous deletes of one plant exactly one succeeds', async (t) => {
      const frank = await as('frank')
      await frank.create({ id: 1, name: 'Monstera' })
      const answers = await Promise.all(range(50).map(() => frank.delete(1)))
      t.strictSame(answers.map(({ statusCode }) => statusCode).sort(), [204, ...range(49).map(() => 404)])
    })

    t.test('of 400 simultaneous creates by two users each is stored, in its owner\'s list only', async (t) => {
      const users = [await as('grace'), await as('heidi')]
      const answers = await Promise.all(range(400).map((index) =>
        users[index % 2]?.create({ id: Math.floor(index / 2), name: `${index % 2}: ${index}`, ...index % 3 === 0 && { tag: `${index}` } })))
      t.strictSame(answers.filter((answer) => answer?.statusCode !== 200), [])
      for (const [which, user] of users.entries()) {
        t.strictSame((await user.list()).json(), range(200).map((id) => 2 * id + which)
          .map((index) => ({ name: `${which}: ${index}`, ...index % 3 === 0 && { tag: `${index}` } })))
      }
      const deletes = await Promise.all(range(200).map((id) => users[0]?.delete(id)))
      t.ok(deletes.every((answer) => answer?.statusCode === 204))
      t.strictSame((await users[0]?.list())?.json(), [])
      t.equal((await users[1]?.list())?.json().length, 200)
    })
  })
}
