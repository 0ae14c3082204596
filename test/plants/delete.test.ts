import t from 'tap'
import { startApp } from '../support/app.ts'
import { actInOrder, startHeldUp } from '../support/held-up.ts'

const range = (length: number) => Array.from({ length }, (_, index) => index)
const statuses = (answers: Array<{ statusCode: number }>) => answers.map(({ statusCode }) => statusCode)
const small = (count: number) => range(count).map((id) => ({ id, name: `plant ${id}` }))

// Single statements and batches must not differ in what they answer.
for (const WRITE_BATCH of ['1', '7', '500']) {
  t.test(`with WRITE_BATCH=${WRITE_BATCH} of 50 deletes of one plant at once one succeeds`, async (t) => {
    const { as } = await startApp(t, { WRITE_BATCH })
    const frank = await as('frank')
    await frank.create({ id: 1, name: 'Monstera' })
    const answers = await Promise.all(range(50).map(() => frank.delete(1)))
    t.strictSame(answers.map(({ statusCode }) => statusCode).sort(), [204, ...range(49).map(() => 404)])
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

t.test('a batch of deletes locks its plants in the order of their key', async (t) => {
  const { as, url } = await startApp(t, { STATEMENT_TIMEOUT: '1m' })
  const alice = await as('alice')
  for (const id of [3, 2, 1, 0]) await alice.create({ id, name: 'Ivy' })
  const answers = await actInOrder(t, url, (id) => alice.delete(id), (ids) =>
    `select from plants where id in (${ids.join()}) for update`)
  t.strictSame(statuses(answers), [204, 204, 204, 204])
})
