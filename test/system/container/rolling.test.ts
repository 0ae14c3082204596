import t from 'tap'
import { createRandom } from '../faults/random.ts'
import { counted } from '../faults/storm.ts'
import { startWriters } from '../faults/writers.ts'
import { runbook } from './operator.ts'
import { buildImage, buildNextImage, findImage, image, openProject, until, waitForStatus } from './support.ts'

const instances = ['plant-store-1', 'plant-store-2', 'plant-store-3']
const next = 'localhost/plant-store:test-next'

await buildImage()
await buildNextImage(next, 'alter table plants add column height integer;')
const project = await openProject(t, 'rolling')
project.env.HAPROXY_IMAGE = await findImage('haproxy:3.4')
// All load comes from one address, and the proxy's default limit per address would throttle this load.
project.env.REQUESTS_PER_10_SECONDS = '1000000'
t.comment(`proxy: ${project.env.HAPROXY_IMAGE}`)

await project.compose('up', '--detach')
for (const instance of instances) await project.healthy(instance)
const url = await project.url('proxy')
await waitForStatus(`${url}/readyz`, 200)

async function replace (instance: string, by: string) {
  project.env.PLANT_STORE_IMAGE = by
  await project.compose('up', '--detach', '--no-deps', '--force-recreate', instance)
  await project.healthy(instance)
}

const databaseUrl = await project.databaseUrl('database')
// Without a pause, the load takes all processors, and a start of an instance takes over a minute.
const { acknowledged, ledger, stop } =
  await startWriters(databaseUrl, [url], createRandom(Date.now()), 100)

await t.test('rotating the database password of three instances under load fails no request', async t => {
  await acknowledged(100)
  const [prepare, restart] = runbook['Rotate the database password'] as [string, string]
  await project.sh(prepare, { NEW_USER: 'plant_store_2', NEW_PASSWORD: 'another' })
  Object.assign(project.env, { DATABASE_USER: 'plant_store_2', DATABASE_PASSWORD: 'another' })
  await project.sh(restart, { OLD_USER: 'plant_store' })
  await acknowledged(100)
  t.equal(await project.sql(`select string_agg(distinct usename, ',') from pg_stat_activity
    where application_name = 'plant-store'`), 'plant_store_2')
  t.equal(ledger.failed(), 0)
})

await t.test('an upgrade migrates, and the old version still runs and starts beside it', async t => {
  const columns = () => project.sql(`select count(*) from information_schema.columns
    where table_name = 'plants' and column_name = 'height'`)
  t.equal(await columns(), '0')
  await replace('plant-store-1', next)
  t.equal(await columns(), '1')
  await replace('plant-store-2', image)
  await acknowledged(100)
  const breaches = await stop(databaseUrl.replace('plant_store:plants', 'plant_store_2:another'))
  t.comment(counted(ledger.counts))
  t.equal(ledger.failed(), 0)
  t.strictSame(breaches, [], 'an order of the requests explains every response')
})

await t.test('the runbook\'s commands reach every instance', async (t) => {
  const log = async (instance: string) => project.compose('logs', '--no-color', instance)
  for (const level of ['debug', 'info']) {
    await project.sh(runbook['Log at debug for a moment']?.[0] as string)
    for (const instance of instances) {
      await until(() => log(instance), (text) => text.includes(`the log level is ${level}`))
    }
  }
  const [look = ''] = runbook['When something is wrong'] ?? []
  const shown = await project.sh(look)
  for (const instance of instances) t.match(shown, new RegExp(`${instance}[-_]1 +\\|`), instance)
})

await t.test('without the database, the proxy forwards the responses of the instances', async t => {
  const get = async (headers: Record<string, string>) => {
    const response = await fetch(`${url}/plants`, { headers })
    const { error } = await response.json() as { error: number }
    return { status: response.status, error, retryAfter: response.headers.get('retry-after') }
  }
  const token = await project.token('carol', 'plant-store-1')
  await project.compose('stop', 'database')
  await waitForStatus(`${url}/readyz`, 503)
  // Wait until the proxy has noticed that no instance is ready.
  const log = () => project.compose('logs', '--no-color', 'proxy')
  await until(log, (log) => log.includes('ready has no server available'))
  t.match(await get({ authorization: `Bearer ${token}` }), { status: 503, error: 50301, retryAfter: '1' })
  t.match(await get({}), { status: 401, error: 40101 })
  t.equal((await fetch(`${url}/livez`)).status, 200)
})
