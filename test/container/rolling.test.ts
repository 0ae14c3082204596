import t from 'tap'
import { startLoad } from './load.ts'
import { answers, buildImage, buildNextImage, findProxyImage, image, openProject } from './support.ts'

t.setTimeout(240_000)

const next = 'localhost/plant-store:test-next'

await buildImage()
await buildNextImage(next, 'alter table plants add column height integer;')
const project = await openProject(t, 'docker-compose.rolling.yml')
project.env.HAPROXY_IMAGE = await findProxyImage()
t.comment(`proxy: ${project.env.HAPROXY_IMAGE}`)

await project.compose('up', '--detach')
for (const instance of ['one', 'two', 'three']) await project.healthy(instance)
const url = await project.url('proxy')
await answers(`${url}/readyz`, 200)

async function replace (instance: string, by: string) {
  project.env.PLANT_STORE_IMAGE = by
  await project.compose('up', '--detach', '--no-deps', '--force-recreate', instance)
  await project.healthy(instance)
}

async function stored (token: string) {
  const answer = await fetch(`${url}/plants`, { headers: { authorization: `Bearer ${token}` } })
  return await answer.json()
}

await t.test('three instances restarted one by one under load fail not one request', async t => {
  const token = await project.token('alice', 'one')
  const load = startLoad(t, { url, token })
  for (const instance of ['one', 'two', 'three']) await replace(instance, image)
  const result = await load.stop()

  t.comment(`${result.answered} requests answered, ${result.failures.length} failed`)
  t.strictSame(result.failures, [])
  t.strictSame(await stored(token), result.stored, 'what was acknowledged is stored')
})

await t.test('an upgrade brings its migration, and the old version works on beside it and starts again', async t => {
  const columns = () => project.sql("select count(*) from information_schema.columns where table_name = 'plants' and column_name = 'height'")
  t.equal(await columns(), '0')

  const token = await project.token('bob', 'one')
  const load = startLoad(t, { url, token })
  await replace('one', next)
  t.equal(await columns(), '1')
  await replace('two', image)
  const result = await load.stop()

  t.comment(`${result.answered} requests answered, ${result.failures.length} failed`)
  t.strictSame(result.failures, [])
  t.strictSame(await stored(token), result.stored, 'what was acknowledged is stored')
})
