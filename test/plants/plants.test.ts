import t from 'tap'
import { startApp } from '../support/app.ts'

t.test('a created plant is listed and can be deleted', async (t) => {
  const { as } = await startApp(t)
  const alice = await as('alice')

  const created = await alice.create({ id: 1, name: 'Monstera', tag: 'tropical' })
  t.equal(created.statusCode, 200)
  t.same(created.json(), { name: 'Monstera', tag: 'tropical' })
  t.same((await alice.list()).json(), [{ name: 'Monstera', tag: 'tropical' }])

  const deleted = await alice.delete(1)
  t.equal(deleted.statusCode, 204)
  t.equal(deleted.body, '')
  t.notHas(deleted.headers, { 'content-type': /./ })
  t.same((await alice.list()).json(), [])
})
