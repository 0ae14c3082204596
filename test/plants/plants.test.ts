// Tests the operations on plants. test/table-gateway/ tests batches, pages and failures.
import t from 'tap'
import { PlantSchema } from '../../src/plants/plant.ts'
import { startApp } from '../support/app.ts'
import { createDatabase, sql } from '../support/database.ts'
import { isError } from '../support/error-response.ts'
import { linkTo } from '../support/plants.ts'
import { foreignSettings, testFields } from '../support/values.ts'

const { as, url } = await startApp(t, { DATABASE_URL: `${await createDatabase(t)}?${foreignSettings}` })

t.test('a plant is created, listed and deleted by its user alone', async (t) => {
  const [alice, bob] = [await as('alice'), await as('bob')]
  const monstera = { name: 'Monstera', tag: 'indoor' }
  const created = await alice.create({ id: 2, ...monstera, height: 5 })
  t.strictSame([created.statusCode, created.json()], [200, monstera])
  t.strictSame((await alice.create({ id: 1, name: 'Fern' })).json(), { name: 'Fern' })
  t.strictSame(await sql(url, 'select owner, id, name, tag from plants order by id'),
    [{ owner: 'alice', id: '1', name: 'Fern', tag: null }, { owner: 'alice', id: '2', ...monstera }])
  isError(t, await alice.create({ id: 1, name: 'Ivy' }), 40014, 'You already have a plant with this id.',
    'create with a used id')
  t.strictSame((await alice.list()).json(), [{ name: 'Fern' }, monstera])
  isError(t, await alice.create({ id: 1, name: 'Fern', tag: '' }), 40014,
    'You already have a plant with this id.', 'create with another tag')
  isError(t, await alice.create({ id: 1, name: 'Fern', height: 5 }), 40019, 'This plant is already stored.',
    'repeated create')
  const page = await alice.list('?limit=1')
  t.strictSame([page.json(), page.headers.link], [[{ name: 'Fern' }], linkTo(1, 2)])

  t.strictSame((await bob.list()).json(), [])
  isError(t, await bob.delete(1), 40402, 'You have no plant with this id.', 'delete of another user\'s plant')
  t.equal((await bob.create({ id: 1, name: 'Oak' })).statusCode, 200)

  const deleted = await alice.delete(1)
  t.strictSame([deleted.statusCode, deleted.body], [204, ''])
  isError(t, await alice.delete(1), 40402, 'You have no plant with this id.', 'delete of a deleted plant')
  t.strictSame((await alice.list()).json(), [monstera])
  t.strictSame((await bob.list()).json(), [{ name: 'Oak' }])
})

t.test('a value of a field is rejected, or listed as the create returned it', (t) =>
  testFields(t, as, PlantSchema, 'name'))
